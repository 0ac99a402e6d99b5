#include "experiments/record/hdf5.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <sstream>
#include <string_view>

namespace ringlab::experiments::hdf5 {
namespace {

static_assert(std::is_same_v<hid_t, std::int64_t>, "Handle keeps HDF5 identifiers as 64-bit integers");

/// Said before any other call: nothing is left for HDF5 to do at exit, where HDF5 1.10 crashes on a file that it could
/// not close, and it prints nothing.
const bool is_set_up = H5dont_atexit() >= 0 && H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;

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

std::vector<hsize_t> extents(Extents shape) { return {shape.begin(), shape.end()}; }

Handle space_of(Extents shape, std::string_view name) {
    const auto now = extents(shape);
    return checked(
        shape.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(now.size()), now.data(), nullptr),
        H5Sclose, "cannot describe", name);
}

Handle type_of(const Dataset& dataset) {
    return checked(H5Dget_type(dataset.id()), H5Tclose, "cannot open", dataset.name());
}

/// UTF-8 texts of this many bytes each, or of any length.
Handle text_type(std::size_t bytes = H5T_VARIABLE) {
    Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.id(), bytes);
    H5Tset_cset(type.id(), H5T_CSET_UTF8);
    if (bytes != H5T_VARIABLE) H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
    return type;
}

template <class T>
hid_t native() {
    if constexpr (std::is_same_v<T, double>) return H5T_NATIVE_DOUBLE;
    if constexpr (std::is_same_v<T, float>) return H5T_NATIVE_FLOAT;
    if constexpr (std::is_same_v<T, std::int64_t>) return H5T_NATIVE_INT64;
    if constexpr (std::is_same_v<T, std::int32_t>) return H5T_NATIVE_INT32;
    if constexpr (std::is_same_v<T, std::int8_t>) return H5T_NATIVE_INT8;
}

/// What HDF5 wants to know of values in memory, which must outlive this.
struct Elements {
    Handle type;
    const void* data = nullptr;
    std::vector<const char*> texts = {};
    std::vector<char> padded = {};
};

/// Numbers, or texts of any length.
template <class T>
Elements elements_of(std::span<const T> values) {
    if constexpr (std::is_same_v<T, std::string>) {
        Elements elements{text_type()};
        for (const auto& text : values) elements.texts.push_back(text.c_str());
        elements.data = elements.texts.data();
        return elements;
    } else {
        return {{H5Tcopy(native<T>()), H5Tclose}, values.data()};
    }
}

/// Texts that are all as long as the longest, side by side.
Elements padded_texts(const std::vector<std::string>& texts) {
    std::size_t width = 1;
    for (const auto& text : texts) width = std::max(width, text.size());
    Elements elements{text_type(width)};
    elements.padded.resize(width * texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) std::ranges::copy(texts[i], elements.padded.begin() + i * width);
    elements.data = elements.padded.data();
    return elements;
}

/// Texts of fixed or variable length, from whatever `read` fills with the given memory type.
template <class Read>
std::vector<std::string> read_texts(const Handle& stored, const Handle& space, std::string_view name, Read read) {
    require(H5Tget_class(stored.id()) == H5T_STRING, "{} must be text", name);
    const auto count = static_cast<std::size_t>(check(H5Sget_simple_extent_npoints(space.id()), "cannot size", name));
    std::vector<std::string> texts(count);
    if (count == 0) return texts;
    if (H5Tis_variable_str(stored.id()) > 0) {
        std::vector<char*> raw(count, nullptr);
        check(read(stored.id(), raw.data()), "cannot read", name);
        for (std::size_t i = 0; i < count; ++i) texts[i] = raw[i] ? raw[i] : "";
        H5Dvlen_reclaim(stored.id(), space.id(), H5P_DEFAULT, raw.data());
        return texts;
    }
    const auto width = H5Tget_size(stored.id());
    std::vector<char> raw(count * width);
    check(read(stored.id(), raw.data()), "cannot read", name);
    for (std::size_t i = 0; i < count; ++i) {
        const auto* begin = raw.data() + i * width;
        texts[i].assign(begin, std::find(begin, begin + width, '\0'));
    }
    return texts;
}

/// An attribute that is read.
struct OpenAttribute {
    std::string name;
    Handle attribute, type, space;

    OpenAttribute(const Object& object, const std::string& attribute_name)
        : name(object.name() + "@" + attribute_name) {
        require(object.has(attribute_name), "{} is missing", name);
        attribute = checked(H5Aopen(object.id(), attribute_name.c_str(), H5P_DEFAULT), H5Aclose, "cannot open", name);
        type = checked(H5Aget_type(attribute.id()), H5Tclose, "cannot open", name);
        space = checked(H5Aget_space(attribute.id()), H5Sclose, "cannot open", name);
    }

    std::vector<std::string> texts() const {
        return read_texts(type, space, name,
                          [&](hid_t memory, void* out) { return H5Aread(attribute.id(), memory, out); });
    }

    template <class T>
    std::vector<T> numbers() const {
        const auto type_class = H5Tget_class(type.id());
        require(type_class == H5T_INTEGER || type_class == H5T_FLOAT || type_class == H5T_ENUM, "{} must be a number",
                name);
        std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.id())));
        if (!values.empty()) check(H5Aread(attribute.id(), native<T>(), values.data()), "cannot read", name);
        return values;
    }

    template <class T>
    T only(const std::vector<T>& values) const {
        require(values.size() == 1, "{} holds {} values; it must hold one", name, values.size());
        return values.front();
    }

    Attribute value() const {
        const auto one_or_all = [&](auto values) -> Attribute {
            if (H5Sget_simple_extent_type(space.id()) == H5S_SCALAR) return only(values);
            return values;
        };
        const auto type_class = H5Tget_class(type.id());
        if (type_class == H5T_STRING) return one_or_all(texts());
        return type_class == H5T_FLOAT ? one_or_all(numbers<double>()) : one_or_all(numbers<std::int64_t>());
    }
};

/// All elements of a dataset as numbers of this type.
template <class T>
std::vector<T> read_all(const Dataset& dataset) {
    const Handle space(H5Dget_space(dataset.id()), H5Sclose);
    std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.id())));
    check(H5Dread(dataset.id(), native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "cannot read",
          dataset.name());
    return values;
}

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

/// Storage that is compressed without loss, in chunks of whole rows.
Handle compressed(Extents shape) {
    constexpr hsize_t elements = 1 << 16;  // at most half of what readers keep of a dataset in memory, 1 MiB
    constexpr unsigned small = 9;
    auto chunk = extents(shape);
    hsize_t inner = 1;
    for (auto extent = chunk.rbegin(); extent != chunk.rend(); ++extent) {
        *extent = std::clamp<hsize_t>(elements / inner, 1, std::max<hsize_t>(*extent, 1));
        inner *= *extent;
    }
    auto plist = creation(H5P_DATASET_CREATE);
    H5Pset_chunk(plist.id(), static_cast<int>(chunk.size()), chunk.data());
    H5Pset_shuffle(plist.id());
    if (H5Zfilter_avail(H5Z_FILTER_DEFLATE) > 0) H5Pset_deflate(plist.id(), small);
    H5Pset_fletcher32(plist.id());
    return plist;
}

Handle storage_of(Extents shape, std::size_t element_bytes, bool packed) {
    constexpr std::size_t compact_bytes = 256;  // datasets up to this size live in their own header
    for (const auto extent : shape) element_bytes *= static_cast<std::size_t>(extent);
    if (element_bytes > compact_bytes && packed && !shape.empty()) return compressed(shape);
    auto plist = creation(H5P_DATASET_CREATE);
    if (element_bytes <= compact_bytes) H5Pset_layout(plist.id(), H5D_COMPACT);
    return plist;
}

/// IEEE half precision, which HDF5 1.10 has no name for.
Handle fp16_type() {
    Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    H5Tset_fields(type.id(), 15, 10, 5, 0, 10);
    H5Tset_size(type.id(), 2);
    H5Tset_ebias(type.id(), 15);
    return type;
}

Handle file_access() {
    Handle plist(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(plist.id(), H5F_CLOSE_STRONG);
    return plist;
}

}  // namespace

void Object::set(const std::string& attribute, const Attribute& value) {
    const auto full = name_ + "@" + attribute;
    std::visit(
        [&]<class T>(const T& held) {
            constexpr bool is_single = std::is_same_v<T, std::string> || std::is_arithmetic_v<T>;
            const auto values = [&] {
                if constexpr (is_single)
                    return std::span(&held, 1);
                else
                    return std::span(held);
            }();
            const std::vector<std::int64_t> shape(is_single ? 0 : 1, std::ssize(values));
            const auto elements = elements_of(values);
            const auto made = checked(H5Acreate2(id(), attribute.c_str(), elements.type.id(),
                                                 space_of(shape, full).id(), H5P_DEFAULT, H5P_DEFAULT),
                                      H5Aclose, "cannot make", full);
            if (!values.empty()) check(H5Awrite(made.id(), elements.type.id(), elements.data), "cannot write", full);
        },
        value);
}

bool Object::has(const std::string& attribute) const {
    return check(H5Aexists(id(), attribute.c_str()), "cannot look for attribute of", name_) > 0;
}

std::string Object::text(const std::string& attribute) const {
    const OpenAttribute open(*this, attribute);
    return open.only(open.texts());
}

std::vector<std::string> Object::texts(const std::string& attribute) const {
    return OpenAttribute(*this, attribute).texts();
}

double Object::number(const std::string& attribute) const {
    const OpenAttribute open(*this, attribute);
    return open.only(open.numbers<double>());
}

std::vector<std::pair<std::string, Attribute>> Object::attributes() const {
    std::vector<std::string> names;
    const auto collect = [](hid_t, const char* attribute, const H5A_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->emplace_back(attribute);
        return 0;
    };
    check(H5Aiterate2(id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names), "cannot list attributes of", name_);
    std::vector<std::pair<std::string, Attribute>> all;
    for (const auto& name : names) all.emplace_back(name, OpenAttribute(*this, name).value());
    return all;
}

std::vector<std::int64_t> Dataset::shape() const {
    const auto space = checked(H5Dget_space(id()), H5Sclose, "cannot open", name());
    const int rank = check(H5Sget_simple_extent_ndims(space.id()), "cannot size", name());
    std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
    if (rank > 0) check(H5Sget_simple_extent_dims(space.id(), dims.data(), nullptr), "cannot size", name());
    return {dims.begin(), dims.end()};
}

Element Dataset::element() const {
    const auto type = type_of(*this);
    const auto size = H5Tget_size(type.id());
    const auto type_class = H5Tget_class(type.id());
    if (type_class == H5T_STRING) return Element::text;
    if (type_class == H5T_INTEGER)
        return size == 2 && H5Tget_sign(type.id()) == H5T_SGN_NONE ? Element::uint16 : Element::integer;
    const auto bias = type_class == H5T_FLOAT ? H5Tget_ebias(type.id()) : 0;
    if (size == 8 && bias == 1023) return Element::fp64;
    if (size == 4 && bias == 127) return Element::fp32;
    if (size == 2 && bias == 127) return Element::bf16;
    return size == 2 && bias == 15 ? Element::fp16 : Element::other;
}

std::vector<double> Dataset::doubles() const { return read_all<double>(*this); }
std::vector<std::int64_t> Dataset::integers() const { return read_all<std::int64_t>(*this); }

std::vector<std::string> Dataset::texts() const {
    if (has("flag_meanings")) {
        std::istringstream words(text("flag_meanings"));
        const std::vector<std::string> meanings(std::istream_iterator<std::string>(words), {});
        std::vector<std::string> named;
        for (const auto value : integers()) {
            named.push_back(value < 0 || value >= std::ssize(meanings) ? ""
                                                                       : meanings[static_cast<std::size_t>(value)]);
        }
        return named;
    }
    const auto space = checked(H5Dget_space(id()), H5Sclose, "cannot open", name());
    return read_texts(type_of(*this), space, name(), [&](hid_t memory, void* out) {
        return H5Dread(id(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
    });
}

Values Dataset::values() const {
    switch (element()) {
        case Element::text: return texts();
        case Element::fp64: return doubles();
        case Element::fp32: return read_all<float>(*this);
        default: break;
    }
    const auto bytes = H5Tget_size(type_of(*this).id());
    if (bytes == sizeof(std::int8_t)) return read_all<std::int8_t>(*this);
    if (bytes == sizeof(std::int32_t)) return read_all<std::int32_t>(*this);
    return integers();
}

void Dataset::read_block(Extents offset, Extents count, std::span<double> out) const {
    const auto file = checked(H5Dget_space(id()), H5Sclose, "cannot open", name());
    const auto memory = space_of(count, name());
    check(
        H5Sselect_hyperslab(file.id(), H5S_SELECT_SET, extents(offset).data(), nullptr, extents(count).data(), nullptr),
        "cannot select in", name());
    check(H5Dread(id(), H5T_NATIVE_DOUBLE, memory.id(), file.id(), H5P_DEFAULT, out.data()), "cannot read", name());
}

void Dataset::write(std::span<const double> values) {
    check(H5Dwrite(id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "cannot write", name());
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

bool Group::contains(const std::string& path) const {
    return check(H5LTpath_valid(id(), path.c_str(), true), "cannot search", name()) > 0;
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
    std::vector<std::string> names;
    const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->emplace_back(name);
        return 0;
    };
    if (H5Literate(id(), H5_INDEX_CRT_ORDER, H5_ITER_INC, nullptr, collect, &names) < 0)  // not tracked
        check(H5Literate(id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names), "cannot list", name());
    return names;
}

Group Group::make_group(const std::string& path) {
    if (!contains(path))
        checked(
            H5Gcreate2(id(), path.c_str(), link_creation().id(), group_creation(H5P_GROUP_CREATE).id(), H5P_DEFAULT),
            H5Gclose, "cannot make group", path_name(path));
    return group(path);
}

Dataset Group::make(const std::string& path, const Handle& type, Extents shape, const Handle& storage) {
    const auto full = path_name(path);
    return {checked(H5Dcreate2(id(), path.c_str(), type.id(), space_of(shape, full).id(), link_creation().id(),
                               storage.id(), H5P_DEFAULT),
                    H5Dclose, "cannot make dataset", full),
            full};
}

Dataset Group::make_dataset(const std::string& path, const Values& values, Extents shape, bool packed) {
    const auto* texts = std::get_if<std::vector<std::string>>(&values);
    const auto elements =
        texts ? padded_texts(*texts) : std::visit([](const auto& all) { return elements_of(std::span(all)); }, values);
    auto made = make(path, elements.type, shape, storage_of(shape, H5Tget_size(elements.type.id()), packed));
    if (size_of(values) > 0)
        check(H5Dwrite(made.id(), elements.type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, elements.data), "cannot write",
              made.name());
    return made;
}

Dataset Group::make_dataset(const std::string& path, Element stored, Extents shape) {
    require(stored == Element::fp16 || stored == Element::fp32 || stored == Element::fp64 || stored == Element::uint16,
            "{} cannot be stored in this type; use fp16, fp32, fp64 or uint16", path_name(path));
    const auto standard = stored == Element::fp32   ? H5T_IEEE_F32LE
                          : stored == Element::fp64 ? H5T_IEEE_F64LE
                                                    : H5T_STD_U16LE;
    const auto type = stored == Element::fp16 ? fp16_type() : Handle(H5Tcopy(standard), H5Tclose);
    return make(path, type, shape, creation(H5P_DATASET_CREATE));
}

File File::from(std::int64_t id, const std::filesystem::path& path, const char* what) {
    auto file = checked(id, H5Fclose, what, path.string());
    auto root = checked(H5Gopen2(file.id(), "/", H5P_DEFAULT), H5Gclose, "cannot read", path.string());
    return {std::move(file), std::move(root), path.string() + ":/"};
}

File File::open(const std::filesystem::path& path) {
    return from(H5Fopen(path.c_str(), H5F_ACC_RDONLY, file_access().id()), path, "cannot read");
}

File File::create(const std::filesystem::path& path) {
    // HDF5 takes two open files of one name for one file, and refuses the name of a file that exists on disk.
    static std::atomic<int> count = 0;
    const auto name = fmt::format("/in memory/{}", count++);
    const auto access = file_access();
    H5Pset_fapl_core(access.id(), 1 << 20, false);
    auto file = from(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, group_creation(H5P_FILE_CREATE).id(), access.id()), path,
                     "cannot create");
    // From here on new objects are of the format of HDF5 1.10, whose metadata carry checksums: damage is told, not
    // followed. The superblock was made in the oldest format: that of a later one marks the file as open for writing,
    // and H5Fget_file_image() takes the mark out without mending the checksum over it.
    check(H5Fset_libver_bounds(file.file_.id(), H5F_LIBVER_V110, H5F_LIBVER_V110), "cannot set the format of",
          file.name());
    return file;
}

std::vector<std::byte> File::image() const {
    check(H5Fflush(file_.id(), H5F_SCOPE_GLOBAL), "cannot flush", name());
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(check(H5Fget_file_image(file_.id(), nullptr, 0), "cannot size", name())));
    check(H5Fget_file_image(file_.id(), bytes.data(), bytes.size()), "cannot copy", name());
    return bytes;
}

}  // namespace ringlab::experiments::hdf5
