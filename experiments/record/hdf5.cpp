#include "experiments/record/hdf5_calls.hpp"

#include <fmt/format.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>

namespace ringlab::experiments::hdf5 {
namespace {

template <class T>
hid_t native() {
    if constexpr (std::is_same_v<T, double>) return H5T_NATIVE_DOUBLE;
    if constexpr (std::is_same_v<T, float>) return H5T_NATIVE_FLOAT;
    if constexpr (std::is_same_v<T, std::int64_t>) return H5T_NATIVE_INT64;
    if constexpr (std::is_same_v<T, std::int32_t>) return H5T_NATIVE_INT32;
    if constexpr (std::is_same_v<T, std::int8_t>) return H5T_NATIVE_INT8;
}

Elements describe_texts(std::span<const std::string> texts) {
    Elements elements{text_type(), nullptr, texts.size(), true};
    for (const auto& text : texts) elements.texts.push_back(text.c_str());
    elements.data = elements.texts.data();
    return elements;
}

template <class T>
Elements describe_numbers(std::span<const T> numbers) {
    return {{H5Tcopy(native<T>()), H5Tclose}, numbers.data(), numbers.size()};
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

    void require_single() const {
        const auto count = H5Sget_simple_extent_npoints(space.id());
        require(count == 1, "{} holds {} values; it must hold one", name, count);
    }

    std::vector<std::string> texts() const {
        return read_texts(type, space, name,
                          [&](hid_t memory, void* out) { return H5Aread(attribute.id(), memory, out); });
    }
};

/// A part of a dataset in the file, and the same number of elements in memory.
struct Block {
    Handle file, memory;

    Block(const Dataset& dataset, Extents offset, Extents count)
        : file(checked(H5Dget_space(dataset.id()), H5Sclose, "cannot open", dataset.name())),
          memory(space_of(count, dataset.name())) {
        check(H5Sselect_hyperslab(file.id(), H5S_SELECT_SET, extents(offset).data(), nullptr, extents(count).data(),
                                  nullptr),
              "cannot select in", dataset.name());
    }
};

/// All elements of a dataset as numbers of this type.
template <class T>
std::vector<T> read_all(const Dataset& dataset) {
    const auto shape = dataset.shape();
    const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<T> values(static_cast<std::size_t>(count));
    check(H5Dread(dataset.id(), native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "cannot read",
          dataset.name());
    return values;
}

}  // namespace

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

Handle text_type(std::size_t bytes) {
    Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.id(), bytes);
    H5Tset_cset(type.id(), H5T_CSET_UTF8);
    if (bytes != H5T_VARIABLE) H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
    return type;
}

Handle space_of(Extents shape, std::string_view name, bool grows) {
    if (shape.empty()) return checked(H5Screate(H5S_SCALAR), H5Sclose, "cannot describe", name);
    const auto now = extents(shape);
    const std::vector<hsize_t> unlimited(now.size(), H5S_UNLIMITED);
    return checked(H5Screate_simple(static_cast<int>(now.size()), now.data(), grows ? unlimited.data() : nullptr),
                   H5Sclose, "cannot describe", name);
}

Elements elements_of(const Values& values) {
    return std::visit(
        [](const auto& all) {
            using T = typename std::decay_t<decltype(all)>::value_type;
            if constexpr (std::is_same_v<T, std::string>)
                return describe_texts(all);
            else
                return describe_numbers(std::span(all));
        },
        values);
}

Elements elements_of(const Attribute& value) {
    return std::visit(
        [](const auto& held) {
            using T = std::decay_t<decltype(held)>;
            Elements elements;
            if constexpr (std::is_same_v<T, std::string>)
                elements = describe_texts(std::span(&held, 1));
            else if constexpr (std::is_arithmetic_v<T>)
                elements = describe_numbers(std::span(&held, 1));
            else if constexpr (std::is_same_v<T, std::vector<std::string>>)
                elements = describe_texts(held);
            else
                elements = describe_numbers(std::span(held));
            elements.is_single = std::is_same_v<T, std::string> || std::is_arithmetic_v<T>;
            return elements;
        },
        value);
}

std::size_t size_of(const Values& values) {
    return std::visit([](const auto& all) { return all.size(); }, values);
}

void Object::set(const std::string& attribute, const Attribute& value) {
    const auto full = name_ + "@" + attribute;
    const auto elements = elements_of(value);
    const std::vector<std::int64_t> shape(elements.is_single ? 0 : 1, static_cast<std::int64_t>(elements.count));
    const auto made = checked(
        H5Acreate2(id(), attribute.c_str(), elements.type.id(), space_of(shape, full).id(), H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose, "cannot make", full);
    if (elements.count > 0) check(H5Awrite(made.id(), elements.type.id(), elements.data), "cannot write", full);
}

/// By hand: H5Ocopy() of HDF5 1.10 crashes where an object has more than eight attributes and texts among them.
void Object::copy_attributes(const Object& from) {
    std::vector<std::string> names;
    const auto collect = [](hid_t, const char* attribute, const H5A_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->emplace_back(attribute);
        return 0;
    };
    check(H5Aiterate2(from.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names), "cannot list attributes of",
          from.name());
    for (const auto& name : names) {
        const OpenAttribute old(from, name);
        const Handle memory(H5Tcopy(old.type.id()), H5Tclose);
        const auto made =
            checked(H5Acreate2(id(), name.c_str(), old.type.id(), old.space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                    "cannot make", name_ + "@" + name);
        const auto count = static_cast<std::size_t>(H5Sget_simple_extent_npoints(old.space.id()));
        if (count == 0) continue;
        std::vector<std::byte> elements(count * H5Tget_size(memory.id()));
        check(H5Aread(old.attribute.id(), memory.id(), elements.data()), "cannot read", old.name);
        const auto written = H5Awrite(made.id(), memory.id(), elements.data());
        if (H5Tis_variable_str(memory.id()) > 0)
            H5Dvlen_reclaim(memory.id(), old.space.id(), H5P_DEFAULT, elements.data());
        check(written, "cannot copy", old.name);
    }
}

bool Object::has(const std::string& attribute) const {
    return check(H5Aexists(id(), attribute.c_str()), "cannot look for attribute of", name_) > 0;
}

std::string Object::text(const std::string& attribute) const {
    const OpenAttribute open(*this, attribute);
    open.require_single();
    return open.texts().front();
}

std::vector<std::string> Object::texts(const std::string& attribute) const {
    return OpenAttribute(*this, attribute).texts();
}

double Object::number(const std::string& attribute) const {
    const OpenAttribute open(*this, attribute);
    open.require_single();
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
    const auto type = type_of(*this);
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

std::vector<double> Dataset::doubles() const { return read_all<double>(*this); }

std::vector<std::int64_t> Dataset::integers() const { return read_all<std::int64_t>(*this); }

std::vector<std::string> Dataset::texts() const {
    if (has("flag_meanings")) {
        std::vector<std::string> meanings, named;
        std::istringstream words(text("flag_meanings"));
        for (std::string word; words >> word;) meanings.push_back(word);
        for (const auto value : integers()) {
            const bool missing = value < 0 || value >= static_cast<std::int64_t>(meanings.size());
            named.push_back(missing ? "" : meanings[static_cast<std::size_t>(value)]);
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
    const Block block(*this, offset, count);
    check(H5Dread(id(), H5T_NATIVE_DOUBLE, block.memory.id(), block.file.id(), H5P_DEFAULT, out.data()), "cannot read",
          name());
}

void Dataset::grow(Extents shape) { check(H5Dset_extent(id(), extents(shape).data()), "cannot extend", name()); }

void Dataset::write_block(Extents offset, Extents count, const Values& values) {
    const auto elements = elements_of(values);
    if (elements.count == 0) return;
    const Block block(*this, offset, count);
    check(H5Dwrite(id(), elements.type.id(), block.memory.id(), block.file.id(), H5P_DEFAULT, elements.data),
          "cannot write", name());
}

void Dataset::write(std::span<const double> values) {
    check(H5Dwrite(id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "cannot write", name());
}

void Dataset::tell_missing() {
    const auto type = type_of(*this);
    if (H5Tget_class(type.id()) != H5T_INTEGER || has("_FillValue")) return;
    const auto bits = static_cast<int>(8 * H5Tget_size(type.id()));
    const auto least = std::numeric_limits<std::int64_t>::min() >> (64 - bits);
    const auto made =
        checked(H5Acreate2(id(), "_FillValue", type.id(), space_of({}, name()).id(), H5P_DEFAULT, H5P_DEFAULT),
                H5Aclose, "cannot make an attribute of", name());
    check(H5Awrite(made.id(), H5T_NATIVE_INT64, &least), "cannot write an attribute of", name());
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

bool Dataset::is_scale() const { return H5DSis_scale(id()) > 0; }

void Dataset::make_scale(const std::string& dimension_name) {
    check(H5DSset_scale(id(), dimension_name.c_str()), "cannot make a dimension scale of", name());
}

void Dataset::attach_scale(const Dataset& scale, std::size_t dimension) {
    check(H5DSattach_scale(id(), scale.id(), static_cast<unsigned>(dimension)), "cannot name a dimension of", name());
}

}  // namespace ringlab::experiments::hdf5
