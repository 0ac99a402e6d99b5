#include "experiments/record/hdf5_calls.hpp"

#include <fmt/format.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

// Files and groups, and the datasets that are made in them.

namespace ringlab::experiments::hdf5 {
namespace {

/// Said before any other call: nothing is left for HDF5 to do at exit, where HDF5 1.10 crashes on a file that it could
/// not close.
const bool left_open_at_exit = H5dont_atexit() >= 0;

/// Properties without times, so that equal contents give equal files.
Handle creation(hid_t plist_class) {
    Handle plist(H5Pcreate(plist_class), H5Pclose);
    H5Pset_obj_track_times(plist.id(), false);
    return plist;
}

/// Properties of a group or file: members keep the order of creation, which netCDF readers need.
Handle group_creation(hid_t plist_class) {
    auto plist = creation(plist_class);
    H5Pset_link_creation_order(plist.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    return plist;
}

/// Properties of a link: missing groups on the way are made, names are UTF-8.
Handle link_creation() {
    Handle plist(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(plist.id(), 1);
    H5Pset_char_encoding(plist.id(), H5T_CSET_UTF8);
    return plist;
}

/// Whole rows of the last dimensions, as many as have this many elements.
std::vector<hsize_t> rows_of(Extents shape, hsize_t elements) {
    auto chunk = extents(shape);
    hsize_t inner = 1;
    for (auto extent = chunk.rbegin(); extent != chunk.rend(); ++extent) {
        *extent = std::clamp<hsize_t>(elements / inner, 1, std::max<hsize_t>(*extent, 1));
        inner *= *extent;
    }
    return chunk;
}

/// A chunk of a dataset of all runs whose first has this shape: some hundred elements, so that a small table is one
/// chunk and larger runs need not many more. With one dimension: so many rows.
std::vector<hsize_t> growing_chunk(Extents of_one) {
    constexpr hsize_t elements = 1 << 17, of_runs = 512, shortest = 8, most_runs = 64;
    auto chunk = extents(of_one);
    if (chunk.size() == 1 && chunk[0] > 1) return chunk;
    hsize_t inner = 1;
    for (std::size_t i = chunk.size(); i-- > 1;) {
        chunk[i] = std::clamp<hsize_t>(std::max(chunk[i], chunk[i] > 1 ? shortest : 1), 1, elements / inner);
        inner *= chunk[i];
    }
    chunk[0] = std::clamp<hsize_t>(of_runs / inner, 1, most_runs);
    return chunk;
}

/// Storage in chunks of this shape, compressed without loss; texts of any length cannot be.
Handle chunked(const std::vector<hsize_t>& chunk, bool compressed, unsigned level) {
    auto plist = creation(H5P_DATASET_CREATE);
    H5Pset_chunk(plist.id(), static_cast<int>(chunk.size()), chunk.data());
    if (!compressed) return plist;
    H5Pset_shuffle(plist.id());
    if (H5Zfilter_avail(H5Z_FILTER_DEFLATE) > 0) H5Pset_deflate(plist.id(), level);
    H5Pset_fletcher32(plist.id());
    return plist;
}

Handle growing_storage(Extents of_one, bool is_text) {
    constexpr unsigned fast = 4;  // what grows is written again and again
    return chunked(growing_chunk(of_one), !is_text, fast);
}

Handle packed_storage(Extents shape, std::size_t element_bytes) {
    constexpr std::size_t compact_bytes = 256;  // datasets up to this size live in their own header
    constexpr hsize_t elements = 1 << 16;       // at most half of what readers keep of a dataset in memory, 1 MiB
    constexpr unsigned small = 9;
    std::size_t bytes = element_bytes;
    for (const auto extent : shape) bytes *= static_cast<std::size_t>(extent);
    if (bytes > compact_bytes && !shape.empty()) return chunked(rows_of(shape, elements), true, small);
    auto plist = creation(H5P_DATASET_CREATE);
    if (bytes <= compact_bytes) H5Pset_layout(plist.id(), H5D_COMPACT);
    return plist;
}

/// Texts that are all as long as the longest, side by side, and their type.
struct FixedTexts {
    std::string bytes;
    Handle type;

    explicit FixedTexts(const std::vector<std::string>& texts) {
        std::size_t width = 1;
        for (const auto& text : texts) width = std::max(width, text.size());
        for (const auto& text : texts) bytes += text + std::string(width - text.size(), '\0');
        type = text_type(width);
    }
};

Dataset make(const Group& group, const std::string& path, const std::string& full, const Handle& type,
             const Handle& space, const Handle& storage) {
    return {checked(H5Dcreate2(group.id(), path.c_str(), type.id(), space.id(), link_creation().id(), storage.id(),
                               H5P_DEFAULT),
                    H5Dclose, "cannot make dataset", full),
            full};
}

void write_all(const Dataset& dataset, const Handle& type, const void* data, std::size_t count) {
    if (count == 0) return;
    check(H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "cannot write", dataset.name());
}

/// IEEE half precision, which HDF5 1.10 has no name for.
Handle fp16_type() {
    Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    H5Tset_fields(type.id(), 15, 10, 5, 0, 10);
    H5Tset_size(type.id(), 2);
    H5Tset_ebias(type.id(), 15);
    return type;
}

/// Sets what an element that was not written holds: NaN, or the least number.
void set_fill_value(const Handle& storage, const Handle& type, const Values& like) {
    std::visit(
        [&](const auto& all) {
            using T = typename std::decay_t<decltype(all)>::value_type;
            if constexpr (std::is_arithmetic_v<T>) {
                const T fill =
                    std::is_floating_point_v<T> ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::min();
                H5Pset_fill_value(storage.id(), type.id(), &fill);
            }
        },
        like);
}

Handle file_access(bool in_memory) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    Handle plist(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(plist.id(), H5F_CLOSE_STRONG);
    constexpr std::size_t increment = 1 << 20;
    if (in_memory) H5Pset_fapl_core(plist.id(), increment, false);
    return plist;
}

}  // namespace

bool Group::contains(const std::string& path) const {
    // HDF5 answers with an error, not with no, when a group on the way is missing.
    for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1))
        if (check(H5Lexists(id(), path.substr(0, end).c_str(), H5P_DEFAULT), "cannot search", name()) == 0)
            return false;
    return check(H5Lexists(id(), path.c_str(), H5P_DEFAULT), "cannot search", name()) > 0;
}

bool Group::is_group(const std::string& path) const {
    const auto object = checked(H5Oopen(id(), path.c_str(), H5P_DEFAULT), H5Oclose, "cannot open", path_name(path));
    return H5Iget_type(object.id()) == H5I_GROUP;
}

Group Group::group(const std::string& path) const {
    require(contains(path), "{} is missing", path_name(path));
    return {checked(H5Gopen2(id(), path.c_str(), H5P_DEFAULT), H5Gclose, "cannot open group", path_name(path)),
            path_name(path)};
}

Dataset Group::dataset(const std::string& path) const {
    require(contains(path), "{} is missing", path_name(path));
    return {checked(H5Dopen2(id(), path.c_str(), H5P_DEFAULT), H5Dclose, "cannot open dataset", path_name(path)),
            path_name(path)};
}

std::vector<std::string> Group::members() const {
    const Handle plist(H5Gget_create_plist(id()), H5Pclose);
    unsigned order = 0;
    if (plist.id() >= 0) H5Pget_link_creation_order(plist.id(), &order);
    std::vector<std::string> names;
    const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->emplace_back(name);
        return 0;
    };
    check(H5Literate(id(), order & H5P_CRT_ORDER_TRACKED ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME, H5_ITER_INC, nullptr,
                     collect, &names),
          "cannot list", name());
    return names;
}

Group Group::make_group(const std::string& path) {
    for (std::size_t end = 0; end != std::string::npos;) {
        end = path.find('/', end + 1);
        const auto so_far = path.substr(0, end);
        if (contains(so_far)) continue;
        checked(
            H5Gcreate2(id(), so_far.c_str(), link_creation().id(), group_creation(H5P_GROUP_CREATE).id(), H5P_DEFAULT),
            H5Gclose, "cannot make group", path_name(so_far));
    }
    return group(path);
}

Dataset Group::make_dataset(const std::string& path, const Values& values, Extents shape) {
    const auto full = path_name(path);
    const auto space = space_of(shape, full);
    if (const auto* texts = std::get_if<std::vector<std::string>>(&values)) {
        const FixedTexts fixed(*texts);
        auto made = make(*this, path, full, fixed.type, space, packed_storage(shape, H5Tget_size(fixed.type.id())));
        write_all(made, fixed.type, fixed.bytes.data(), texts->size());
        return made;
    }
    const auto elements = elements_of(values);
    auto made = make(*this, path, full, elements.type, space, packed_storage(shape, H5Tget_size(elements.type.id())));
    write_all(made, elements.type, elements.data, elements.count);
    return made;
}

Dataset Group::make_growing(const std::string& path, const Values& like, Extents of_one) {
    const auto full = path_name(path);
    const auto elements = elements_of(like);
    const bool is_text = std::holds_alternative<std::vector<std::string>>(like);
    const auto storage = growing_storage(of_one, is_text);
    set_fill_value(storage, elements.type, like);
    return make(*this, path, full, elements.type, space_of(std::vector<std::int64_t>(of_one.size()), full, true),
                storage);
}

Dataset Group::make_dataset(const std::string& path, Element stored, Extents shape) {
    const auto full = path_name(path);
    const auto standard = [](hid_t type) { return Handle(H5Tcopy(type), H5Tclose); };
    Handle type;
    switch (stored) {
        case Element::fp16: type = fp16_type(); break;
        case Element::fp32: type = standard(H5T_IEEE_F32LE); break;
        case Element::fp64: type = standard(H5T_IEEE_F64LE); break;
        case Element::uint16: type = standard(H5T_STD_U16LE); break;
        default: fail("{} cannot be stored in this type; use fp16, fp32, fp64 or uint16", full);
    }
    return make(*this, path, full, type, space_of(shape, full), creation(H5P_DATASET_CREATE));
}

File File::from(Handle file, const std::filesystem::path& path) {
    auto root = checked(H5Gopen2(file.id(), "/", H5P_DEFAULT), H5Gclose, "cannot read", path.string());
    return {std::move(file), std::move(root), path.string() + ":/"};
}

File File::open(const std::filesystem::path& path) {
    const auto access = file_access(false);
    return from(checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose, "cannot read", path.string()),
                path);
}

File File::create(const std::filesystem::path& path) {
    // HDF5 takes two open files of one name for one file, and refuses the name of a file that exists on disk.
    static std::atomic<int> count = 0;
    const auto name = fmt::format("/in memory/{}", count++);
    const auto access = file_access(true);
    const auto properties = group_creation(H5P_FILE_CREATE);
    auto file = checked(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, properties.id(), access.id()), H5Fclose, "cannot create",
                        path.string());
    // From here on new objects are of the format of HDF5 1.10, whose metadata carry checksums: damage is told, not
    // followed. The superblock was made in the oldest format: that of a later one marks the file as open for writing,
    // and H5Fget_file_image() takes the mark out without mending the checksum over it.
    check(H5Fset_libver_bounds(file.id(), H5F_LIBVER_V110, H5F_LIBVER_V110), "cannot set the format of", path.string());
    return from(std::move(file), path);
}

std::vector<std::byte> File::image() const {
    check(H5Fflush(file_.id(), H5F_SCOPE_GLOBAL), "cannot flush", name());
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(check(H5Fget_file_image(file_.id(), nullptr, 0), "cannot size", name())));
    check(H5Fget_file_image(file_.id(), bytes.data(), bytes.size()), "cannot copy", name());
    return bytes;
}

}  // namespace ringlab::experiments::hdf5
