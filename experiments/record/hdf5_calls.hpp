#pragma once

#include "experiments/record/hdf5.hpp"
#include "layouts/basics/require.hpp"

#include <hdf5.h>

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

inline std::vector<hsize_t> extents(Extents shape) { return {shape.begin(), shape.end()}; }

/// UTF-8 texts of this many bytes each, or of any length.
Handle text_type(std::size_t bytes = H5T_VARIABLE);

/// A space of this shape; one that `grows` has no limits.
Handle space_of(Extents shape, std::string_view name, bool grows = false);

inline Handle type_of(const Dataset& dataset) {
    return checked(H5Dget_type(dataset.id()), H5Tclose, "cannot open", dataset.name());
}

/// What HDF5 wants to know of values in memory.
struct Elements {
    Handle type;
    const void* data = nullptr;
    std::size_t count = 0;
    bool is_text = false, is_single = false;
    std::vector<const char*> texts = {};  ///< that `data` points to
};
Elements elements_of(const Values& values);
Elements elements_of(const Attribute& value);

}  // namespace ringlab::experiments::hdf5
