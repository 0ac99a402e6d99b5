#include "experiments/record/read_record.hpp"

#include "experiments/files/files_read.hpp"
#include "experiments/files/untrusted.hpp"

namespace ringlab::experiments {
namespace {

void read_all(const hdf5::Dataset& dataset) {
    dataset.shape();
    dataset.scales();
    switch (dataset.element()) {
        case hdf5::Element::text: dataset.texts(); break;
        case hdf5::Element::integer: dataset.integers(); break;
        case hdf5::Element::fp32:
        case hdf5::Element::fp64: dataset.doubles(); break;
        default: break;  // which no record holds
    }
}

void read_all(const hdf5::Group& group) {
    for (const auto* attribute : {"experiment", "commit", "date", "command_line"})
        if (group.has(attribute)) group.text(attribute);
    for (const auto& name : group.members())
        if (group.is_group(name))
            read_all(group.group(name));
        else
            read_all(group.dataset(name));
}

}  // namespace

hdf5::File open_record(const std::filesystem::path& path) {
    note_read(path);
    read_untrusted(
        path,
        [&](PipeEnd& pipe) {
            read_all(hdf5::File::open(path));
            pipe.put(true);
        },
        [](PipeEnd& pipe) { pipe.get<bool>(); });
    return hdf5::File::open(path);
}

}  // namespace ringlab::experiments
