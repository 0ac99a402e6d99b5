#include "experiments/record/record.hpp"
#include "experiments/record/record_paths.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>

namespace ringlab::experiments {
namespace {

/// Extents of a chunk of a dataset of all runs whose first has this shape: some thousand elements, so that a small
/// table is one chunk and larger runs need not many more.
std::vector<std::int64_t> chunk_of(const std::vector<std::int64_t>& shape) {
    constexpr std::int64_t elements = 1 << 17, of_runs = 512, shortest = 8, most_runs = 64;
    std::vector<std::int64_t> chunk(shape.size());
    std::int64_t inner = 1;
    for (std::size_t i = shape.size(); i-- > 1;) {
        chunk[i] = std::clamp<std::int64_t>(std::max(shape[i], shape[i] > 1 ? shortest : 1), 1, elements / inner);
        inner *= chunk[i];
    }
    chunk[0] = std::clamp<std::int64_t>(of_runs / inner, 1, most_runs);
    return chunk;
}

hdf5::Element element_of(const hdf5::Values& values) {
    if (std::holds_alternative<std::vector<double>>(values)) return hdf5::Element::fp64;
    if (std::holds_alternative<std::vector<float>>(values)) return hdf5::Element::fp32;
    return std::holds_alternative<std::vector<std::string>>(values) ? hdf5::Element::text : hdf5::Element::integer;
}

constexpr std::int64_t rows_of_names = 64;  // of a chunk

}  // namespace

/// Gives the dimension a scale 0, 1, 2 ... up to at least this length, unless it has coordinates of its own.
void Record::count_up(const std::string& dimension, std::int64_t length) {
    const bool is_new = !file_->contains(dimension);
    auto scale = is_new
                     ? make_scale(dimension, std::vector<std::int32_t>{}, "1", last_part(dimension) + " number, from 0")
                     : file_->dataset(dimension);
    const auto before = scale.shape().front();
    if (before >= length) return;
    require(scale.element() == hdf5::Element::integer, "dimension '{}' is longer than its coordinates", dimension);
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(length - before));
    std::iota(numbers.begin(), numbers.end(), static_cast<std::int32_t>(before));
    scale.grow(std::array{length});
    scale.write_block(std::array{before}, std::array{length - before}, numbers);
}

void Record::make_folder_of(const std::string& path) {
    const auto slash = path.rfind('/');
    if (slash != std::string::npos) file_->make_group(path.substr(0, slash));
}

hdf5::Dataset Record::make_scale(const std::string& dimension, const hdf5::Values& like, const std::string& unit,
                                 const std::string& description) {
    make_folder_of(dimension);
    auto scale = file_->make_growing(dimension, like, std::array{std::int64_t{0}}, std::array{rows_of_names});
    describe(scale, unit, description);
    scale.make_scale(dimension);
    return scale;
}

void Record::set_coordinates(const RunWriter::Item& given) {
    const auto count = static_cast<std::int64_t>(hdf5::size_of(given.values));
    if (!file_->contains(given.path)) {
        auto scale = make_scale(given.path, given.values, given.unit, given.description);
        scale.grow(std::array{count});
        scale.write_block(std::array{std::int64_t{0}}, std::array{count}, given.values);
        return;
    }
    const auto scale = file_->dataset(given.path);
    const bool same = std::visit(
        [&](const auto& values) {
            using T = typename std::decay_t<decltype(values)>::value_type;
            if (scale.shape().front() != count) return false;
            if constexpr (std::is_same_v<T, std::string>)
                return scale.element() == hdf5::Element::text && scale.texts() == values;
            else
                return scale.element() != hdf5::Element::text &&
                       scale.doubles() == std::vector<double>(values.begin(), values.end());
        },
        given.values);
    require(same, "dimension '{}' has other coordinates than in earlier runs", given.path);
}

/// The place of a label in a dimension of named things, which it is added to if need be.
std::int64_t Record::place_of(const std::string& dimension, const std::string& label) {
    auto scale = file_->contains(dimension)
                     ? file_->dataset(dimension)
                     : make_scale(dimension, std::vector<std::string>{}, "1", "name of the " + last_part(dimension));
    require(scale.element() == hdf5::Element::text, "dimension '{}' is of numbers, not of names", dimension);
    const auto labels = scale.texts();
    const auto found = std::find(labels.begin(), labels.end(), label);
    const auto place = static_cast<std::int64_t>(found - labels.begin());
    if (found == labels.end()) {
        scale.grow(std::array{place + 1});
        scale.write_block(std::array{place}, std::array{std::int64_t{1}}, std::vector<std::string>{label});
    }
    return place;
}

/// A new dataset of all runs.
hdf5::Dataset Record::make_stacked(const RunWriter::Item& like, const std::vector<std::int64_t>& shape,
                                   const std::vector<std::int64_t>& of_one_run) {
    make_folder_of(like.path);
    auto made = file_->make_growing(like.path, like.values, shape, chunk_of(of_one_run));
    describe(made, like.unit, like.description);
    made.attach_scale(file_->dataset("run"), 0);
    for (std::size_t i = 0; i < like.dimensions.size(); ++i)
        made.attach_scale(file_->dataset(like.dimensions[i].name), i + 1);
    if (!like.meanings.empty()) tell_meanings(made, like.meanings);
    stacked_.push_back(like.path);
    return made;
}

/// Writes one run's part of a dataset of all runs.
void Record::append(const RunWriter::Item& item, std::int64_t run) {
    std::vector<std::string> names{"run"};
    std::vector<std::int64_t> offset{run}, count{1};
    bool labelled = false;
    for (const auto& dimension : item.dimensions) {
        names.push_back(dimension.name);
        labelled = labelled || !dimension.label.empty();
        offset.push_back(dimension.label.empty() ? 0 : place_of(dimension.name, dimension.label));
        count.push_back(dimension.length);
    }
    std::vector<std::int64_t> end(count.size());
    for (std::size_t i = 0; i < end.size(); ++i) end[i] = offset[i] + count[i];

    const bool is_new = !file_->contains(item.path);
    auto dataset = is_new ? make_stacked(item, end, count) : file_->dataset(item.path);
    require(is_new || (dataset.scales() == names && dataset.element() == element_of(item.values)),
            "dataset '{}' has another type or other dimensions ({}) than in earlier runs ({})", item.path,
            fmt::join(names, ", "), fmt::join(dataset.scales(), ", "));
    if (!is_new && !item.meanings.empty())
        require(dataset.text("flag_meanings") == fmt::format("{}", fmt::join(item.meanings, " ")),
                "enumeration '{}' has other meanings than in earlier runs", item.path);
    auto shape = dataset.shape();
    bool missing = labelled || (is_new && run > 0) || !item.meanings.empty();
    for (std::size_t i = 0; i < shape.size(); ++i) {
        missing = missing || (i > 0 && shape[i] != end[i]);
        shape[i] = std::max(shape[i], end[i]);
    }
    dataset.grow(shape);
    dataset.write_block(offset, count, item.values);
    if (missing) dataset.tell_missing();
}

/// What a run has nothing of, it still has a place in.
void Record::extend_all(std::int64_t runs) {
    for (const auto& path : stacked_) {
        auto dataset = file_->dataset(path);
        auto shape = dataset.shape();
        if (shape.front() == runs) continue;
        shape.front() = runs;
        dataset.grow(shape);
        dataset.tell_missing();
    }
}

}  // namespace ringlab::experiments
