#include "experiments/record/column.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ringlab::experiments {
namespace {

using hdf5::Extents;

template <class T>
T missing() {
    if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::min();
    if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::quiet_NaN();
    return {};
}

/// Calls body(place) with the place of the first element of each row of a block; a row runs along the last dimension.
template <class Body>
void for_rows(Extents shape, Extents offset, Extents count, const Body& body, std::int64_t above = 0) {
    if (shape.size() == 1) return body(above * shape[0] + offset[0]);
    for (std::int64_t i = 0; i < count[0]; ++i)
        for_rows(shape.subspan(1), offset.subspan(1), count.subspan(1), body, above * shape[0] + offset[0] + i);
}

}  // namespace

bool Column::is_floating() const {
    return std::holds_alternative<std::vector<double>>(values) || std::holds_alternative<std::vector<float>>(values);
}

void Column::grow(const std::vector<std::int64_t>& to) {
    const bool only_longer = std::equal(shape.begin() + 1, shape.end(), to.begin() + 1);
    Column before;
    if (!only_longer) before = *this;
    shape = to;
    std::visit(
        [&]<class T>(std::vector<T>& all) {
            if (!only_longer) all.clear();
            const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
            all.resize(static_cast<std::size_t>(count), missing<T>());
        },
        values);
    if (!only_longer) put(std::vector<std::int64_t>(shape.size()), before);
}

void Column::put(Extents offset, const Column& block) {
    auto needed = shape;
    for (std::size_t i = 0; i < needed.size(); ++i) needed[i] = std::max(needed[i], offset[i] + block.shape[i]);
    if (needed != shape) grow(needed);
    std::visit(
        [&]<class To, class From>(std::vector<To>& to, const std::vector<From>& from) {
            if constexpr (std::is_arithmetic_v<To> == std::is_arithmetic_v<From>) {
                auto next = from.begin();
                for_rows(shape, offset, block.shape, [&](std::int64_t place) {
                    const auto end = next + block.shape.back();
                    std::transform(next, end, to.begin() + place, [](const From& x) { return static_cast<To>(x); });
                    next = end;
                });
            }
        },
        values, block.values);
}

std::vector<double> Column::numbers(Extents offset, Extents count) const {
    require(!is_text(), "{} holds texts, not numbers", path);
    std::vector<double> block;
    std::visit(
        [&]<class T>(const std::vector<T>& all) {
            if constexpr (std::is_arithmetic_v<T>)
                for_rows(shape, offset, count, [&](std::int64_t place) {
                    block.insert(block.end(), all.begin() + place, all.begin() + place + count.back());
                });
        },
        values);
    return block;
}

Column Column::read(const hdf5::File& file, const std::string& path) {
    const auto dataset = file.dataset(path);
    Column column{path, dataset.text("units"), dataset.text("description"),
                  dataset.has("flag_meanings") ? dataset.text("flag_meanings") : ""};
    if (!dataset.has("CLASS")) column.dimensions = dataset.scales();
    column.values = dataset.values();
    column.shape = dataset.shape();
    return column;
}

hdf5::Dataset Column::write(hdf5::File& file, bool packed) const {
    auto made = file.make_dataset(path, values, shape, packed);
    made.set("units", unit);
    made.set("description", description);
    if (!meanings.empty()) {
        std::vector<std::int8_t> places(static_cast<std::size_t>(std::ranges::count(meanings, ' ')) + 1);
        std::iota(places.begin(), places.end(), std::int8_t{0});
        made.set("flag_values", places);
        made.set("flag_meanings", meanings);
    }
    std::visit(
        [&]<class T>(const std::vector<T>& all) {
            if constexpr (std::is_integral_v<T>)
                if (std::ranges::find(all, missing<T>()) != all.end()) made.set("_FillValue", missing<T>());
        },
        values);
    if (dimensions.empty()) made.make_scale(path);
    return made;
}

}  // namespace ringlab::experiments
