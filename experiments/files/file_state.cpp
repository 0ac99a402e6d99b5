#include "experiments/files/file_state.hpp"

#include "experiments/console/message.hpp"
#include "layouts/basics/require.hpp"

#include <sys/stat.h>

namespace ringlab::experiments {
namespace {

FileState from(const struct stat& status) {
    constexpr std::int64_t giga = 1'000'000'000;
    return {status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec * giga + status.st_mtim.tv_nsec};
}

}  // namespace

FileState state_of(const std::filesystem::path& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 ? from(status) : FileState{};
}

FileState state_of(int descriptor, const std::filesystem::path& path) {
    struct stat status {};
    require(::fstat(descriptor, &status) == 0, "cannot read {}: {}", path.string(), error_text());
    return from(status);
}

}  // namespace ringlab::experiments
