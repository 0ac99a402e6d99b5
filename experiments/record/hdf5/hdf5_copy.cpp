#include "experiments/record/hdf5/hdf5_calls.hpp"

#include <hdf5_hl.h>

namespace ringlab::experiments::hdf5 {
namespace {

/// Attributes of dimension scales name objects of their own file; H5DSset_scale() and H5DSattach_scale() make new ones.
bool is_of_scales(const std::string& attribute) {
    return attribute == "CLASS" || attribute == "NAME" || attribute == "DIMENSION_LIST" ||
           attribute == "REFERENCE_LIST";
}

std::vector<std::string> attributes_of(const Object& object) {
    std::vector<std::string> names;
    const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->emplace_back(name);
        return 0;
    };
    check(H5Aiterate2(object.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names), "cannot list attributes of",
          object.name());
    return names;
}

/// Reads all elements in the type that they are stored in, and hands them to `write`.
template <class Read, class Write>
void copy_elements(const Handle& stored, const Handle& space, std::string_view name, Read read, Write write) {
    const Handle type(H5Tcopy(stored.id()), H5Tclose);
    const auto count = check(H5Sget_simple_extent_npoints(space.id()), "cannot size", name);
    std::vector<std::byte> elements(static_cast<std::size_t>(count) * H5Tget_size(type.id()));
    if (elements.empty()) return;
    check(read(type.id(), elements.data()), "cannot read", name);
    const auto written = write(type.id(), elements.data());
    if (H5Tis_variable_str(type.id()) > 0) H5Dvlen_reclaim(type.id(), space.id(), H5P_DEFAULT, elements.data());
    check(written, "cannot copy", name);
}

void copy_attributes(const Object& from, const Object& to) {
    for (const auto& name : attributes_of(from)) {
        if (is_of_scales(name)) continue;
        const auto full = from.name() + "@" + name;
        const auto old = checked(H5Aopen(from.id(), name.c_str(), H5P_DEFAULT), H5Aclose, "cannot open", full);
        const auto type = checked(H5Aget_type(old.id()), H5Tclose, "cannot open", full);
        const auto space = checked(H5Aget_space(old.id()), H5Sclose, "cannot open", full);
        const auto made = checked(H5Acreate2(to.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
                                  H5Aclose, "cannot copy", full);
        copy_elements(
            type, space, full, [&](hid_t memory, void* out) { return H5Aread(old.id(), memory, out); },
            [&](hid_t memory, const void* data) { return H5Awrite(made.id(), memory, data); });
    }
}

/// The type of texts that are all as long as the longest of these.
Handle fixed_text_type(const std::vector<std::string>& texts) {
    std::size_t width = 1;
    for (const auto& text : texts) width = std::max(width, text.size());
    Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.id(), width);
    H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
    H5Tset_cset(type.id(), H5T_CSET_UTF8);
    return type;
}

void write_texts(const Dataset& to, const Handle& type, const std::vector<std::string>& texts) {
    const auto write = [&](const void* data) {
        check(H5Dwrite(to.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "cannot copy", to.name());
    };
    if (texts.empty()) return;
    if (H5Tis_variable_str(type.id()) > 0) return write(pointers(texts).data());
    const auto width = H5Tget_size(type.id());
    std::string padded;
    for (const auto& text : texts) padded += text + std::string(width - text.size(), '\0');
    write(padded.data());
}

/// Makes a dataset of the same path, shape, type and fill value, and copies its elements.
Dataset copy_elements(const Dataset& from, const Group& root, const std::string& path, Storage storage) {
    const auto shape = from.shape();
    auto type = checked(H5Dget_type(from.id()), H5Tclose, "cannot open", from.name());
    const bool is_text = H5Tget_class(type.id()) == H5T_STRING;
    const auto grows = storage == Storage::growing && !shape.empty();
    const auto texts = is_text ? from.texts() : std::vector<std::string>();
    if (is_text) type = grows ? text_type() : fixed_text_type(texts);
    const auto plist = grows ? growing_storage(shape, !is_text) : packed_storage(shape, H5Tget_size(type.id()));
    const auto old_plist = checked(H5Dget_create_plist(from.id()), H5Pclose, "cannot open", from.name());
    H5D_fill_value_t fill = H5D_FILL_VALUE_UNDEFINED;
    H5Pfill_value_defined(old_plist.id(), &fill);
    if (fill == H5D_FILL_VALUE_USER_DEFINED) {
        std::vector<std::byte> value(H5Tget_size(type.id()));
        check(H5Pget_fill_value(old_plist.id(), type.id(), value.data()), "cannot read the fill value of", from.name());
        H5Pset_fill_value(plist.id(), type.id(), value.data());
    }
    auto space = checked(H5Dget_space(from.id()), H5Sclose, "cannot open", from.name());
    const auto old_space = checked(H5Dget_space(from.id()), H5Sclose, "cannot open", from.name());
    if (!shape.empty()) {
        const std::vector<hsize_t> largest(shape.size(), H5S_UNLIMITED);
        check(H5Sset_extent_simple(space.id(), static_cast<int>(shape.size()), extents(shape).data(),
                                   grows ? largest.data() : nullptr),
              "cannot size", from.name());
    }
    Dataset made(checked(H5Dcreate2(root.id(), path.c_str(), type.id(), space.id(), link_creation().id(), plist.id(),
                                    H5P_DEFAULT),
                         H5Dclose, "cannot copy", from.name()),
                 from.name());
    if (is_text) {
        write_texts(made, type, texts);
        return made;
    }
    copy_elements(
        type, old_space, from.name(),
        [&](hid_t memory, void* out) { return H5Dread(from.id(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out); },
        [&](hid_t memory, const void* data) {
            return H5Dwrite(made.id(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
        });
    return made;
}

/// Copies what is below `from`, whose path in the file is `path`, and gathers the paths of its datasets.
void copy_members(const Group& from, Group& root, const std::string& path, Storage storage,
                  std::vector<std::string>& datasets) {
    for (const auto& name : from.members()) {
        const auto below = path + name;
        if (from.is_group(name)) {
            const auto group = from.group(name);
            copy_attributes(group, root.make_group(below));
            copy_members(group, root, below + "/", storage, datasets);
            continue;
        }
        const auto dataset = from.dataset(name);
        auto made = copy_elements(dataset, root, below, storage);
        copy_attributes(dataset, made);
        datasets.push_back(below);
        if (H5DSis_scale(dataset.id()) <= 0) continue;
        std::string scale(static_cast<std::size_t>(H5DSget_scale_name(dataset.id(), nullptr, 0)), '\0');
        H5DSget_scale_name(dataset.id(), scale.data(), scale.size() + 1);
        made.make_scale(scale);
    }
}

}  // namespace

File File::copied(const std::filesystem::path& path, Storage storage) const {
    auto copy = create_in_memory(path);
    copy_attributes(*this, copy);
    std::vector<std::string> datasets;
    copy_members(*this, copy, "", storage, datasets);
    for (const auto& name : datasets) {
        const auto scales = dataset(name).scales();
        for (std::size_t i = 0; i < scales.size(); ++i)
            if (!scales[i].empty()) copy.dataset(name).attach_scale(copy.dataset(scales[i]), i);
    }
    return copy;
}

}  // namespace ringlab::experiments::hdf5
