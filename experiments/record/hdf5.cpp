#include "experiments/record/hdf5.hpp"

#include "layouts/require.hpp"

#include <fmt/ranges.h>
#include <hdf5.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <type_traits>

namespace ringlab::experiments::hdf5 {
namespace {

static_assert(std::is_same_v<hid_t, std::int64_t>, "Handle keeps HDF5 identifiers as 64-bit integers");

/// Datasets up to this size live in their own header, under its checksum; larger ones are compressed.
constexpr std::size_t compact_bytes = 1024;
constexpr hsize_t chunk_elements = 1 << 17;
constexpr unsigned deflate_level = 4;

/// What HDF5 has to say about its last failure: the innermost description, on one line.
std::string reason() {
    std::string text;
    const auto take_first = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        auto& kept = *static_cast<std::string*>(out);
        if (kept.empty() && error->desc) kept = error->desc;
        return 0;
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &text);
    H5Eclear2(H5E_DEFAULT);
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
    return text.empty() ? "HDF5 gives no reason" : text;
}

/// Negative is HDF5's sign of failure, whatever the call.
template <class Result>
Result check(Result result, std::string_view what, std::string_view name) {
    if (result < 0) fail("{} {}: {}", what, name, reason());
    return result;
}

Handle checked(hid_t id, Handle::Close close, std::string_view what, std::string_view name) {
    return {check(id, what, name), close};
}

Handle text_type() {
    Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.id(), H5T_VARIABLE);
    H5Tset_cset(type.id(), H5T_CSET_UTF8);
    return type;
}

/// IEEE half precision, which HDF5 1.10 has no name for.
Handle fp16_type() {
    Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    H5Tset_fields(type.id(), 15, 10, 5, 0, 10);
    H5Tset_size(type.id(), 2);
    H5Tset_ebias(type.id(), 15);
    return type;
}

template <class T>
hid_t native();
template <>
hid_t native<double>() {
    return H5T_NATIVE_DOUBLE;
}
template <>
hid_t native<std::int64_t>() {
    return H5T_NATIVE_INT64;
}
template <>
hid_t native<std::int32_t>() {
    return H5T_NATIVE_INT32;
}
template <>
hid_t native<std::int8_t>() {
    return H5T_NATIVE_INT8;
}

/// What an element that was not written holds.
template <class T>
T fill_value() {
    return std::is_floating_point_v<T> ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::min();
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
    std::vector<const char*> all;
    for (const auto& text : texts) all.push_back(text.c_str());
    return all;
}

std::vector<hsize_t> extents(std::span<const std::int64_t> shape) { return {shape.begin(), shape.end()}; }

Handle space_of(std::span<const std::int64_t> shape, std::string_view name) {
    if (shape.empty()) return checked(H5Screate(H5S_SCALAR), H5Sclose, "cannot describe", name);
    const auto dims = extents(shape);
    return checked(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose, "cannot describe",
                   name);
}

/// Layout and filters of a dataset; `fixed` elements have a size known before they are written.
Handle storage_of(std::span<const std::int64_t> shape, std::size_t bytes, bool fixed) {
    Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.id(), false);
    if (bytes <= compact_bytes) {
        H5Pset_layout(plist.id(), H5D_COMPACT);
    } else if (fixed && !shape.empty()) {
        auto chunk = extents(shape);
        hsize_t inner = 1;  // whole rows of the last dimensions, as many as fit
        for (auto extent = chunk.rbegin(); extent != chunk.rend(); ++extent) {
            *extent = std::clamp<hsize_t>(chunk_elements / inner, 1, *extent);
            inner *= *extent;
        }
        H5Pset_chunk(plist.id(), static_cast<int>(chunk.size()), chunk.data());
        H5Pset_shuffle(plist.id());
        if (H5Zfilter_avail(H5Z_FILTER_DEFLATE) > 0) H5Pset_deflate(plist.id(), deflate_level);
        H5Pset_fletcher32(plist.id());
    }
    return plist;
}

Handle link_creation() {
    Handle plist(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(plist.id(), 1);
    H5Pset_char_encoding(plist.id(), H5T_CSET_UTF8);
    return plist;
}

/// Members in the order of creation, which netCDF readers ask for; no times, so equal contents give equal files.
Handle group_creation(hid_t plist_class) {
    Handle plist(H5Pcreate(plist_class), H5Pclose);
    H5Pset_link_creation_order(plist.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    H5Pset_obj_track_times(plist.id(), false);
    return plist;
}

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

/// Texts of fixed or variable length, from whatever `read` fills with the given memory type.
template <class Read>
std::vector<std::string> read_texts(hid_t stored, hid_t space, std::string_view name, Read read) {
    require(H5Tget_class(stored) == H5T_STRING, "{} must be text", name);
    const auto count = static_cast<std::size_t>(check(H5Sget_simple_extent_npoints(space), "cannot size", name));
    std::vector<std::string> texts(count);
    if (H5Tis_variable_str(stored) > 0) {
        Handle type(H5Tcopy(stored), H5Tclose);
        std::vector<char*> raw(count, nullptr);
        check(read(type.id(), raw.data()), "cannot read", name);
        for (std::size_t i = 0; i < count; ++i) texts[i] = raw[i] ? raw[i] : "";
        H5Dvlen_reclaim(type.id(), space, H5P_DEFAULT, raw.data());
    } else {
        const auto width = H5Tget_size(stored);
        std::vector<char> raw(count * width);
        check(read(stored, raw.data()), "cannot read", name);
        for (std::size_t i = 0; i < count; ++i) {
            const auto* begin = raw.data() + i * width;
            texts[i].assign(begin, std::find(begin, begin + width, '\0'));
        }
    }
    return texts;
}

}  // namespace

std::size_t size_of(const Values& values) {
    return std::visit([](const auto& all) { return all.size(); }, values);
}

void Object::set(const std::string& attribute, const Attribute& value) {
    const auto full = name_ + "@" + attribute;
    const auto write = [&](hid_t type, std::size_t count, bool scalar, const void* data) {
        const std::vector<std::int64_t> shape(scalar ? 0 : 1, static_cast<std::int64_t>(count));
        const auto space = space_of(shape, full);
        const auto made = checked(H5Acreate2(id(), attribute.c_str(), type, space.id(), H5P_DEFAULT, H5P_DEFAULT),
                                  H5Aclose, "cannot make", full);
        if (count > 0) check(H5Awrite(made.id(), type, data), "cannot write", full);
    };
    std::visit(
        [&](const auto& held) {
            using T = std::decay_t<decltype(held)>;
            if constexpr (std::is_same_v<T, std::string>) {
                const auto* text = held.c_str();
                write(text_type().id(), 1, true, &text);
            } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
                write(text_type().id(), held.size(), false, pointers(held).data());
            } else if constexpr (std::is_arithmetic_v<T>) {
                write(native<T>(), 1, true, &held);
            } else {
                write(native<typename T::value_type>(), held.size(), false, held.data());
            }
        },
        value);
}

bool Object::has(const std::string& attribute) const {
    return check(H5Aexists(id(), attribute.c_str()), "cannot look for attribute of", name_) > 0;
}

namespace {

struct OpenAttribute {
    std::string name;
    Handle attribute, type, space;
};

/// An attribute that must hold exactly one element.
OpenAttribute open_single(const Object& object, const std::string& attribute) {
    OpenAttribute open;
    open.name = object.name() + "@" + attribute;
    require(object.has(attribute), "{} is missing", open.name);
    open.attribute = checked(H5Aopen(object.id(), attribute.c_str(), H5P_DEFAULT), H5Aclose, "cannot open", open.name);
    open.type = checked(H5Aget_type(open.attribute.id()), H5Tclose, "cannot open", open.name);
    open.space = checked(H5Aget_space(open.attribute.id()), H5Sclose, "cannot open", open.name);
    const auto count = H5Sget_simple_extent_npoints(open.space.id());
    require(count == 1, "{} holds {} values; it must hold one", open.name, count);
    return open;
}

}  // namespace

std::string Object::text(const std::string& attribute) const {
    const auto open = open_single(*this, attribute);
    return read_texts(open.type.id(), open.space.id(), open.name,
                      [&](hid_t type, void* out) { return H5Aread(open.attribute.id(), type, out); })
        .front();
}

double Object::number(const std::string& attribute) const {
    const auto open = open_single(*this, attribute);
    const auto type_class = H5Tget_class(open.type.id());
    require(type_class == H5T_INTEGER || type_class == H5T_FLOAT || type_class == H5T_ENUM, "{} must be a number",
            open.name);
    double value = 0;
    check(H5Aread(open.attribute.id(), H5T_NATIVE_DOUBLE, &value), "cannot read", open.name);
    return value;
}

std::vector<std::int64_t> Dataset::shape() const {
    const auto space = checked(H5Dget_space(id()), H5Sclose, "cannot open", name());
    const int rank = check(H5Sget_simple_extent_ndims(space.id()), "cannot size", name());
    std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
    if (rank > 0) check(H5Sget_simple_extent_dims(space.id(), dims.data(), nullptr), "cannot size", name());
    return {dims.begin(), dims.end()};
}

Element Dataset::element() const {
    const auto type = checked(H5Dget_type(id()), H5Tclose, "cannot open", name());
    const auto size = H5Tget_size(type.id());
    switch (H5Tget_class(type.id())) {
        case H5T_STRING: return Element::text;
        case H5T_INTEGER:
            return size == 2 && H5Tget_sign(type.id()) == H5T_SGN_NONE ? Element::uint16 : Element::integer;
        case H5T_FLOAT: {
            std::size_t sign = 0, exponent_at = 0, exponent = 0, mantissa_at = 0, mantissa = 0;
            H5Tget_fields(type.id(), &sign, &exponent_at, &exponent, &mantissa_at, &mantissa);
            if (size == 8 && exponent == 11) return Element::fp64;
            if (size == 4 && exponent == 8) return Element::fp32;
            if (size == 2 && exponent == 8) return Element::bf16;
            if (size == 2 && exponent == 5) return Element::fp16;
            return Element::other;
        }
        default: return Element::other;
    }
}

std::string Dataset::element_text() const {
    const auto type = checked(H5Dget_type(id()), H5Tclose, "cannot open", name());
    const auto bits = 8 * H5Tget_size(type.id());
    switch (H5Tget_class(type.id())) {
        case H5T_FLOAT: return fmt::format("{}-bit float", bits);
        case H5T_INTEGER:
            return fmt::format("{}-bit {}integer", bits, H5Tget_sign(type.id()) == H5T_SGN_NONE ? "unsigned " : "");
        case H5T_STRING: return "text";
        case H5T_COMPOUND: return "compound";
        case H5T_ENUM: return "enumeration";
        default: return "another type";
    }
}

namespace {

std::size_t element_count(const std::vector<std::int64_t>& shape) {
    return static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

}  // namespace

std::vector<double> Dataset::doubles() const {
    std::vector<double> values(element_count(shape()));
    check(H5Dread(id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "cannot read", name());
    return values;
}

std::vector<std::int64_t> Dataset::integers() const {
    std::vector<std::int64_t> values(element_count(shape()));
    check(H5Dread(id(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "cannot read", name());
    return values;
}

std::vector<std::string> Dataset::texts() const {
    const auto type = checked(H5Dget_type(id()), H5Tclose, "cannot open", name());
    const auto space = checked(H5Dget_space(id()), H5Sclose, "cannot open", name());
    return read_texts(type.id(), space.id(), name(), [&](hid_t memory, void* out) {
        return H5Dread(id(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
    });
}

void Dataset::read_block(std::span<const std::int64_t> offset, std::span<const std::int64_t> count,
                         std::int64_t memory_type, void* out) const {
    const auto space = checked(H5Dget_space(id()), H5Sclose, "cannot open", name());
    const auto memory = space_of(count, name());
    check(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, extents(offset).data(), nullptr, extents(count).data(),
                              nullptr),
          "cannot select in", name());
    check(H5Dread(id(), memory_type, memory.id(), space.id(), H5P_DEFAULT, out), "cannot read", name());
}

void Dataset::read_block(std::span<const std::int64_t> offset, std::span<const std::int64_t> count,
                         std::span<double> out) const {
    read_block(offset, count, H5T_NATIVE_DOUBLE, out.data());
}

void Dataset::read_block(std::span<const std::int64_t> offset, std::span<const std::int64_t> count,
                         std::span<std::uint16_t> out) const {
    read_block(offset, count, H5T_NATIVE_UINT16, out.data());
}

void Dataset::grow(std::span<const std::int64_t> shape) {
    check(H5Dset_extent(id(), extents(shape).data()), "cannot extend", name());
}

void Dataset::write_block(std::span<const std::int64_t> offset, std::span<const std::int64_t> count,
                          const Values& values) {
    if (size_of(values) == 0) return;
    const auto space = checked(H5Dget_space(id()), H5Sclose, "cannot open", name());
    const auto memory = space_of(count, name());
    check(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, extents(offset).data(), nullptr, extents(count).data(),
                              nullptr),
          "cannot select in", name());
    const auto write = [&](hid_t type, const void* data) {
        check(H5Dwrite(id(), type, memory.id(), space.id(), H5P_DEFAULT, data), "cannot write", name());
    };
    std::visit(
        [&](const auto& all) {
            using T = typename std::decay_t<decltype(all)>::value_type;
            if constexpr (std::is_same_v<T, std::string>)
                write(text_type().id(), pointers(all).data());
            else
                write(native<T>(), all.data());
        },
        values);
}

void Dataset::tell_missing() {
    const auto type = checked(H5Dget_type(id()), H5Tclose, "cannot open", name());
    if (H5Tget_class(type.id()) != H5T_INTEGER || has("_FillValue")) return;
    const auto creation = checked(H5Dget_create_plist(id()), H5Pclose, "cannot open", name());
    std::int64_t value = 0;  // as large as any of the types
    check(H5Pget_fill_value(creation.id(), type.id(), &value), "cannot read the fill value of", name());
    const auto space = space_of({}, name());
    const auto made = checked(H5Acreate2(id(), "_FillValue", type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                              "cannot make an attribute of", name());
    check(H5Awrite(made.id(), type.id(), &value), "cannot write an attribute of", name());
}

std::vector<std::string> Dataset::scales() const {
    std::vector<std::string> names(shape().size());
    const auto take = [](hid_t, unsigned, hid_t scale, void* out) -> herr_t {
        auto& name = *static_cast<std::string*>(out);
        name.resize(static_cast<std::size_t>(std::max<ssize_t>(H5DSget_scale_name(scale, nullptr, 0), 0)));
        H5DSget_scale_name(scale, name.data(), name.size() + 1);
        return 1;
    };
    for (unsigned i = 0; i < names.size(); ++i)
        check(H5DSiterate_scales(id(), i, nullptr, take, &names[i]), "cannot list the scales of", name());
    return names;
}

void Dataset::make_scale(const std::string& dimension_name) {
    check(H5DSset_scale(id(), dimension_name.c_str()), "cannot make a dimension scale of", name());
}

void Dataset::attach_scale(const Dataset& scale, std::size_t dimension) {
    check(H5DSattach_scale(id(), scale.id(), static_cast<unsigned>(dimension)), "cannot name a dimension of", name());
}

void Dataset::write(std::span<const double> values) {
    check(H5Dwrite(id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "cannot write", name());
}

void Dataset::write(std::span<const std::uint16_t> values) {
    check(H5Dwrite(id(), H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "cannot write", name());
}

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
    std::string so_far;
    for (std::size_t begin = 0; begin <= path.size();) {
        const auto end = std::min(path.find('/', begin), path.size());
        so_far = path.substr(0, end);
        begin = end + 1;
        if (contains(so_far)) continue;
        checked(
            H5Gcreate2(id(), so_far.c_str(), link_creation().id(), group_creation(H5P_GROUP_CREATE).id(), H5P_DEFAULT),
            H5Gclose, "cannot make group", path_name(so_far));
    }
    return group(path);
}

Dataset Group::make_dataset(const std::string& path, const Values& values, std::span<const std::int64_t> shape) {
    const auto full = path_name(path);
    const auto space = space_of(shape, full);
    const auto make = [&](hid_t type, std::size_t bytes, bool fixed, const void* data) {
        Dataset made(checked(H5Dcreate2(id(), path.c_str(), type, space.id(), link_creation().id(),
                                        storage_of(shape, bytes, fixed).id(), H5P_DEFAULT),
                             H5Dclose, "cannot make dataset", full),
                     full);
        if (bytes > 0)
            check(H5Dwrite(made.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "cannot write dataset", full);
        return made;
    };
    return std::visit(
        [&](const auto& all) {
            using T = typename std::decay_t<decltype(all)>::value_type;
            if constexpr (std::is_same_v<T, std::string>) {
                constexpr std::size_t reference_bytes = 16;
                return make(text_type().id(), all.size() * reference_bytes, false, pointers(all).data());
            } else {
                return make(native<T>(), all.size() * sizeof(T), true, all.data());
            }
        },
        values);
}

Dataset Group::make_growing(const std::string& path, const Values& like, std::span<const std::int64_t> shape,
                            std::span<const std::int64_t> chunk) {
    const auto full = path_name(path);
    const std::vector<hsize_t> now = extents(shape), largest(shape.size(), H5S_UNLIMITED);
    const auto space = checked(H5Screate_simple(static_cast<int>(now.size()), now.data(), largest.data()), H5Sclose,
                               "cannot describe", full);
    Handle storage(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(storage.id(), false);
    H5Pset_chunk(storage.id(), static_cast<int>(chunk.size()), extents(chunk).data());
    const auto make = [&](hid_t type) {
        return Dataset(
            checked(H5Dcreate2(id(), path.c_str(), type, space.id(), link_creation().id(), storage.id(), H5P_DEFAULT),
                    H5Dclose, "cannot make dataset", full),
            full);
    };
    return std::visit(
        [&](const auto& all) {
            using T = typename std::decay_t<decltype(all)>::value_type;
            if constexpr (std::is_same_v<T, std::string>) {
                return make(text_type().id());
            } else {
                const T fill = fill_value<T>();
                H5Pset_fill_value(storage.id(), native<T>(), &fill);
                H5Pset_shuffle(storage.id());
                if (H5Zfilter_avail(H5Z_FILTER_DEFLATE) > 0) H5Pset_deflate(storage.id(), deflate_level);
                H5Pset_fletcher32(storage.id());
                return make(native<T>());
            }
        },
        like);
}

Dataset Group::make_dataset(const std::string& path, Element stored, std::span<const std::int64_t> shape) {
    const auto full = path_name(path);
    const auto half = fp16_type();
    hid_t type = H5T_IEEE_F64LE;
    switch (stored) {
        case Element::fp16: type = half.id(); break;
        case Element::fp32: type = H5T_IEEE_F32LE; break;
        case Element::fp64: type = H5T_IEEE_F64LE; break;
        case Element::uint16: type = H5T_STD_U16LE; break;
        default: fail("{} cannot be stored in this type; use fp16, fp32, fp64 or uint16", full);
    }
    Handle storage(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(storage.id(), false);
    return {checked(H5Dcreate2(id(), path.c_str(), type, space_of(shape, full).id(), link_creation().id(), storage.id(),
                               H5P_DEFAULT),
                    H5Dclose, "cannot make dataset", full),
            full};
}

void Group::remove(const std::string& path) {
    check(H5Ldelete(id(), path.c_str(), H5P_DEFAULT), "cannot remove", path_name(path));
}

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
