#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

/// The little of HDF5 that Ringlab needs, owned and checked: whatever fails throws Error with one line that names the
/// file and object and ends in HDF5's own most specific reason. Not for several threads at once.
///
/// By hand and not with HighFive, which Debian 12 does not package.
namespace ringlab::experiments::hdf5 {

/// An HDF5 identifier (hid_t) and the function that gives it back.
class Handle {
public:
    using Close = int (*)(std::int64_t);

    Handle() = default;
    Handle(std::int64_t id, Close close) : id_(id), close_(close) {}
    Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
    Handle& operator=(Handle&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    ~Handle() {
        if (id_ >= 0) close_(id_);
    }

    std::int64_t id() const { return id_; }

private:
    std::int64_t id_ = -1;
    Close close_ = nullptr;
};

/// What an attribute may hold; text is UTF-8 of variable length, which h5py reads as str.
using Attribute = std::variant<std::string, double, std::int64_t, std::int32_t, std::int8_t, std::vector<std::string>,
                               std::vector<double>, std::vector<std::int64_t>, std::vector<std::int8_t>>;

/// What a dataset may be written from.
using Values = std::variant<std::vector<double>, std::vector<float>, std::vector<std::int64_t>,
                            std::vector<std::int32_t>, std::vector<std::int8_t>, std::vector<std::string>>;

inline std::size_t size_of(const Values& values) {
    return std::visit([](const auto& all) { return all.size(); }, values);
}

/// Extents, offsets and counts of a dataset's dimensions.
using Extents = std::span<const std::int64_t>;

/// How the elements of a dataset are stored, as far as Ringlab tells them apart.
enum class Element { fp16, bf16, fp32, fp64, uint16, integer, text, other };

/// A file, group or dataset.
class Object {
public:
    Object(Handle handle, std::string name) : handle_(std::move(handle)), name_(std::move(name)) {}

    void set(const std::string& attribute, const Attribute& value);

    bool has(const std::string& attribute) const;

    /// The one text or number that the attribute holds (a boolean of h5py is the number 0 or 1).
    std::string text(const std::string& attribute) const;
    double number(const std::string& attribute) const;

    /// All texts that the attribute holds.
    std::vector<std::string> texts(const std::string& attribute) const;

    /// All attributes by name, whole numbers in 64 bits. Not for dimension scales, whose attributes hold references.
    std::vector<std::pair<std::string, Attribute>> attributes() const;

    /// "FILE:/path/inside", for messages.
    const std::string& name() const { return name_; }
    std::int64_t id() const { return handle_.id(); }

private:
    Handle handle_;
    std::string name_;
};

class Dataset : public Object {
public:
    using Object::Object;

    std::vector<std::int64_t> shape() const;
    Element element() const;

    std::vector<double> doubles() const;
    std::vector<std::int64_t> integers() const;
    /// The texts. Of an enumeration (numbers with flag_values and flag_meanings) they are the meanings, "" where a
    /// value is missing.
    std::vector<std::string> texts() const;

    /// All elements as they are stored.
    Values values() const;

    /// The block of `count` elements from `offset` on, each of length shape().size(), as doubles.
    void read_block(Extents offset, Extents count, std::span<double> out) const;

    /// All elements, in the type that they are stored in.
    void write(std::span<const double> values);

    /// Names of the scales attached, one for each dimension, "" where there is none.
    std::vector<std::string> scales() const;

    /// Makes this dataset a dimension scale, the thing that gives a dimension its name and coordinates.
    void make_scale(const std::string& dimension_name);
    void attach_scale(const Dataset& scale, std::size_t dimension);
};

class Group : public Object {
public:
    using Object::Object;

    /// A path that leads somewhere: "a/b/c", no leading slash.
    bool contains(const std::string& path) const;
    bool is_group(const std::string& path) const;
    Group group(const std::string& path) const;
    Dataset dataset(const std::string& path) const;

    /// Names of members in the order in which they were added, or by name in files that do not track it.
    std::vector<std::string> members() const;

    /// Makes the group, and the groups on the way to it; opens it if it is there.
    Group make_group(const std::string& path);

    /// A dataset of this shape (none: a single value), with all texts as long as the longest, since HDF5 compresses no
    /// others. If it is not small, `packed` compresses it, which takes longer than to write it.
    Dataset make_dataset(const std::string& path, const Values& values, Extents shape, bool packed = true);

    /// An empty, uncompressed dataset to write() to. `stored` must be a floating type or uint16.
    Dataset make_dataset(const std::string& path, Element stored, Extents shape);

private:
    Dataset make(const std::string& path, const Handle& type, Extents shape, const Handle& storage);
    std::string path_name(const std::string& path) const { return name() + (name().back() == '/' ? "" : "/") + path; }
};

class File : public Group {
public:
    /// A file on disk, to read.
    static File open(const std::filesystem::path& path);

    /// A new file in memory; `path` serves messages alone.
    static File create(const std::filesystem::path& path);

    /// The bytes that the file in memory would have on disk.
    std::vector<std::byte> image() const;

private:
    File(Handle file, Handle root, std::string name)
        : Group(std::move(root), std::move(name)), file_(std::move(file)) {}
    static File from(std::int64_t id, const std::filesystem::path& path, const char* what);

    Handle file_;
};

}  // namespace ringlab::experiments::hdf5
