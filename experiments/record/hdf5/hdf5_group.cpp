#include "experiments/record/hdf5/hdf5_calls.hpp"

namespace ringlab::experiments::hdf5 {

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

}  // namespace ringlab::experiments::hdf5
