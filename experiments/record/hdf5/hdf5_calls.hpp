#pragma once

#include "experiments/record/hdf5/hdf5.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/// What the files that call HDF5 share.
namespace ringlab::experiments::hdf5 {

static_assert(std::is_same_v<hid_t, std::int64_t>, "Handle keeps HDF5 identifiers as 64-bit integers");

/// What HDF5 has to say about its last failure: the innermost description, on one line.
std::string reason();

/// Negative is HDF5's sign of failure, whatever the call.
template <class Result>
Result check(Result result, std::string_view what, std::string_view name) {
    if (result < 0) fail("{} {}: {}", what, name, reason());
    return result;
}

inline Handle checked(hid_t id, Handle::Close close, std::string_view what, std::string_view name) {
    return {check(id, what, name), close};
}

Handle text_type();
Handle space_of(std::span<const std::int64_t> shape, std::string_view name);

/// Properties for making a group or file: members keep the order of creation, which netCDF readers need; times are not
/// stored, so equal contents give equal files.
Handle group_creation(hid_t plist_class);

/// Properties for making a link: missing groups on the way are made, names are UTF-8.
Handle link_creation();

/// Where the elements of a dataset lie and how they are compressed. `fixed`: their size is known before they are
/// written, as that of texts in a dataset that grows is not.
Handle packed_storage(std::span<const std::int64_t> shape, std::size_t element_bytes, bool fixed = true);
Handle growing_storage(std::span<const std::int64_t> shape, bool fixed);

template <class T>
hid_t native();
template <>
inline hid_t native<double>() {
    return H5T_NATIVE_DOUBLE;
}
template <>
inline hid_t native<float>() {
    return H5T_NATIVE_FLOAT;
}
template <>
inline hid_t native<std::int64_t>() {
    return H5T_NATIVE_INT64;
}
template <>
inline hid_t native<std::int32_t>() {
    return H5T_NATIVE_INT32;
}
template <>
inline hid_t native<std::int8_t>() {
    return H5T_NATIVE_INT8;
}

inline std::vector<hsize_t> extents(std::span<const std::int64_t> shape) { return {shape.begin(), shape.end()}; }

inline std::vector<const char*> pointers(const std::vector<std::string>& texts) {
    std::vector<const char*> all;
    for (const auto& text : texts) all.push_back(text.c_str());
    return all;
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

}  // namespace ringlab::experiments::hdf5
