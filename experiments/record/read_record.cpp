#include "experiments/record/read_record.hpp"

#include "experiments/files/files_read.hpp"

namespace ringlab::experiments {

hdf5::File open_record(const std::filesystem::path& path) {
    note_read(path);
    return hdf5::File::open(path);
}

}  // namespace ringlab::experiments
