#include "experiments/record/hdf5/hdf5_calls.hpp"

#include <limits>

namespace ringlab::experiments::hdf5 {
namespace {

/// Datasets up to this size live in their own header, under its checksum; larger ones are compressed.
constexpr std::size_t compact_bytes = 256;
constexpr unsigned fast = 4, small = 9;  // levels of compression: what grows is written again and again

/// Storage in chunks of this shape, compressed without loss if the elements are of fixed size.
Handle chunked(const std::vector<hsize_t>& chunk, bool fixed, unsigned level) {
    Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.id(), false);
    H5Pset_chunk(plist.id(), static_cast<int>(chunk.size()), chunk.data());
    if (!fixed) return plist;
    H5Pset_shuffle(plist.id());
    if (H5Zfilter_avail(H5Z_FILTER_DEFLATE) > 0) H5Pset_deflate(plist.id(), level);
    H5Pset_fletcher32(plist.id());
    return plist;
}

/// Whole rows of the last dimensions, as many as have this many elements.
std::vector<hsize_t> rows_of(std::span<const std::int64_t> shape, hsize_t elements) {
    auto chunk = extents(shape);
    hsize_t inner = 1;
    for (auto extent = chunk.rbegin(); extent != chunk.rend(); ++extent) {
        *extent = std::clamp<hsize_t>(elements / inner, 1, std::max<hsize_t>(*extent, 1));
        inner *= *extent;
    }
    return chunk;
}

/// IEEE half precision, which HDF5 1.10 has no name for.
Handle fp16_type() {
    Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    H5Tset_fields(type.id(), 15, 10, 5, 0, 10);
    H5Tset_size(type.id(), 2);
    H5Tset_ebias(type.id(), 15);
    return type;
}

/// What an element that was not written holds.
template <class T>
T fill_value() {
    return std::is_floating_point_v<T> ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::min();
}

}  // namespace

Handle packed_storage(std::span<const std::int64_t> shape, std::size_t element_bytes, bool fixed) {
    constexpr hsize_t elements = 1 << 16;  // at most half of what readers keep of a dataset in memory, 1 MiB
    std::size_t bytes = element_bytes;
    for (const auto extent : shape) bytes *= static_cast<std::size_t>(extent);
    if (bytes > compact_bytes && fixed && !shape.empty()) return chunked(rows_of(shape, elements), true, small);
    Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.id(), false);
    if (bytes <= compact_bytes) H5Pset_layout(plist.id(), H5D_COMPACT);
    return plist;
}

Handle growing_storage(std::span<const std::int64_t> shape, bool fixed) {
    constexpr hsize_t elements = 1 << 14;
    std::vector<std::int64_t> expected(shape.begin(), shape.end());
    expected.front() = std::max<std::int64_t>(expected.front(), 64);  // runs are still to come
    return chunked(rows_of(expected, elements), fixed, fast);
}

Dataset Group::make_dataset(const std::string& path, const Values& values, std::span<const std::int64_t> shape) {
    const auto full = path_name(path);
    const auto space = space_of(shape, full);
    const auto make = [&](hid_t type, std::size_t element_bytes, bool fixed, const void* data) {
        Dataset made(checked(H5Dcreate2(id(), path.c_str(), type, space.id(), link_creation().id(),
                                        packed_storage(shape, element_bytes, fixed).id(), H5P_DEFAULT),
                             H5Dclose, "cannot make dataset", full),
                     full);
        if (size_of(values) > 0)
            check(H5Dwrite(made.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "cannot write dataset", full);
        return made;
    };
    return std::visit(
        [&](const auto& all) {
            using T = typename std::decay_t<decltype(all)>::value_type;
            if constexpr (std::is_same_v<T, std::string>) {
                constexpr std::size_t reference_bytes = 16;
                return make(text_type().id(), reference_bytes, false, pointers(all).data());
            } else {
                return make(native<T>(), sizeof(T), true, all.data());
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
    const auto make = [&](hid_t type, const Handle& storage) {
        return Dataset(
            checked(H5Dcreate2(id(), path.c_str(), type, space.id(), link_creation().id(), storage.id(), H5P_DEFAULT),
                    H5Dclose, "cannot make dataset", full),
            full);
    };
    return std::visit(
        [&](const auto& all) {
            using T = typename std::decay_t<decltype(all)>::value_type;
            if constexpr (std::is_same_v<T, std::string>) {
                return make(text_type().id(), chunked(extents(chunk), false, fast));
            } else {
                const auto storage = chunked(extents(chunk), true, fast);
                const T fill = fill_value<T>();
                H5Pset_fill_value(storage.id(), native<T>(), &fill);
                return make(native<T>(), storage);
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

}  // namespace ringlab::experiments::hdf5
