#include "experiments/record/hdf5/hdf5_calls.hpp"

#include <hdf5_hl.h>

#include <numeric>
#include <sstream>

namespace ringlab::experiments::hdf5 {

std::size_t size_of(const Values& values) {
    return std::visit([](const auto& all) { return all.size(); }, values);
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

/// The texts. Of an enumeration (numbers with flag_values and flag_meanings) they are the meanings, "" where a value is
/// missing.
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

}  // namespace ringlab::experiments::hdf5
