#include "experiments/record/hdf5/hdf5_calls.hpp"

namespace ringlab::experiments::hdf5 {

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

OpenAttribute open_attribute(const Object& object, const std::string& attribute) {
    OpenAttribute open;
    open.name = object.name() + "@" + attribute;
    require(object.has(attribute), "{} is missing", open.name);
    open.attribute = checked(H5Aopen(object.id(), attribute.c_str(), H5P_DEFAULT), H5Aclose, "cannot open", open.name);
    open.type = checked(H5Aget_type(open.attribute.id()), H5Tclose, "cannot open", open.name);
    open.space = checked(H5Aget_space(open.attribute.id()), H5Sclose, "cannot open", open.name);
    return open;
}

/// An attribute that must hold exactly one element.
OpenAttribute open_single(const Object& object, const std::string& attribute) {
    auto open = open_attribute(object, attribute);
    const auto count = H5Sget_simple_extent_npoints(open.space.id());
    require(count == 1, "{} holds {} values; it must hold one", open.name, count);
    return open;
}

std::vector<std::string> texts_in(const OpenAttribute& open) {
    return read_texts(open.type.id(), open.space.id(), open.name,
                      [&](hid_t type, void* out) { return H5Aread(open.attribute.id(), type, out); });
}

}  // namespace

std::string Object::text(const std::string& attribute) const { return texts_in(open_single(*this, attribute)).front(); }

std::vector<std::string> Object::texts(const std::string& attribute) const {
    const auto open = open_attribute(*this, attribute);
    return H5Sget_simple_extent_npoints(open.space.id()) == 0 ? std::vector<std::string>() : texts_in(open);
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

}  // namespace ringlab::experiments::hdf5
