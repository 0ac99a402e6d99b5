#include "experiments/record/hdf5/hdf5_calls.hpp"

namespace ringlab::experiments::hdf5 {

std::string reason() {
    std::string text;
    const auto take_first = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        auto& kept = *static_cast<std::string*>(out);
        if (kept.empty() && error->desc) kept = error->desc;
        return 0;
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &text);
    H5Eclear2(H5E_DEFAULT);
    // Of "file write failed: time = ..., errno = 28, error message = 'No space left on device', buf = ..." the message.
    const std::string before = "error message = '";
    if (const auto at = text.find(before); at != std::string::npos) {
        text.erase(0, at + before.size());
        text.erase(std::min(text.find('\''), text.size()));
    }
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
    return text.empty() ? "HDF5 gives no reason" : text;
}

Handle text_type() {
    Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.id(), H5T_VARIABLE);
    H5Tset_cset(type.id(), H5T_CSET_UTF8);
    return type;
}

Handle space_of(std::span<const std::int64_t> shape, std::string_view name) {
    if (shape.empty()) return checked(H5Screate(H5S_SCALAR), H5Sclose, "cannot describe", name);
    const auto dims = extents(shape);
    return checked(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose, "cannot describe",
                   name);
}

Handle link_creation() {
    Handle plist(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(plist.id(), 1);
    H5Pset_char_encoding(plist.id(), H5T_CSET_UTF8);
    return plist;
}

Handle group_creation(hid_t plist_class) {
    Handle plist(H5Pcreate(plist_class), H5Pclose);
    H5Pset_link_creation_order(plist.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    H5Pset_obj_track_times(plist.id(), false);
    return plist;
}

}  // namespace ringlab::experiments::hdf5
