#include "experiments/record/hdf5/hdf5_calls.hpp"

#include <atomic>

namespace ringlab::experiments::hdf5 {
namespace {

/// Said before any other call. A file that could not be written, as on a full disk, cannot be closed either, and
/// HDF5 1.10 crashes when it tries that again at exit. Nothing is left for it to do there: whatever was written whole
/// is closed.
const bool left_open_at_exit = H5dont_atexit() >= 0;

Handle file_access() {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    Handle plist(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(plist.id(), H5F_CLOSE_STRONG);
    return plist;
}

/// From here on new objects are of the format of HDF5 1.10, whose metadata carry checksums: damage is told, not
/// followed. The superblock of a new file is made before, in the oldest format: that of a later one marks the file as
/// open for writing, and H5Fget_file_image() takes the mark out without mending the checksum over it.
void use_checksums(const Handle& file, std::string_view name) {
    check(H5Fset_libver_bounds(file.id(), H5F_LIBVER_V110, H5F_LIBVER_V110), "cannot set the format of", name);
}

Handle memory_access() {
    auto plist = file_access();
    constexpr std::size_t increment = 1 << 20;
    H5Pset_fapl_core(plist.id(), increment, false);
    return plist;
}

/// A name for a file in memory. HDF5 takes two open files of one name for one file, and refuses the name of a file that
/// exists on disk.
std::string memory_name() {
    static std::atomic<int> count = 0;
    return fmt::format("/in memory/{}", count++);
}

}  // namespace

File File::from(Handle file, const std::filesystem::path& path) {
    auto root = checked(H5Gopen2(file.id(), "/", H5P_DEFAULT), H5Gclose, "cannot read", path.string());
    return {std::move(file), std::move(root), path.string() + ":/"};
}

File File::open(const std::filesystem::path& path) {
    const auto access = file_access();
    return from(checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose, "cannot read", path.string()),
                path);
}

File File::create(const std::filesystem::path& path) {
    const auto access = file_access();
    const auto creation = group_creation(H5P_FILE_CREATE);
    auto file = checked(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()), H5Fclose, "cannot create",
                        path.string());
    use_checksums(file, path.string());
    return from(std::move(file), path);
}

File File::create_in_memory(const std::filesystem::path& path) {
    const auto access = memory_access();
    const auto creation = group_creation(H5P_FILE_CREATE);
    auto file = checked(H5Fcreate(memory_name().c_str(), H5F_ACC_TRUNC, creation.id(), access.id()), H5Fclose,
                        "cannot create", path.string());
    use_checksums(file, path.string());
    return from(std::move(file), path);
}

File File::open_image(const std::filesystem::path& path, std::span<const std::byte> image) {
    require(!image.empty(), "cannot read {}: the file is empty", path.string());
    const auto access = memory_access();
    // HDF5 takes its own copy, so the cast does not let it change `image`.
    check(H5Pset_file_image(access.id(), const_cast<std::byte*>(image.data()), image.size()), "cannot read",
          path.string());
    auto file =
        checked(H5Fopen(memory_name().c_str(), H5F_ACC_RDWR, access.id()), H5Fclose, "cannot read", path.string());
    use_checksums(file, path.string());
    return from(std::move(file), path);
}

std::vector<std::byte> File::image() const {
    check(H5Fflush(file_.id(), H5F_SCOPE_GLOBAL), "cannot flush", name());
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(check(H5Fget_file_image(file_.id(), nullptr, 0), "cannot size", name())));
    check(H5Fget_file_image(file_.id(), bytes.data(), bytes.size()), "cannot copy", name());
    return bytes;
}

void File::flush() { check(H5Fflush(file_.id(), H5F_SCOPE_GLOBAL), "cannot write", name()); }

}  // namespace ringlab::experiments::hdf5
