#pragma once

#include "layouts/layouts/layout.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "tests/registered.hpp"
#include "tests/thinning.hpp"

#include <filesystem>
#include <functional>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::layouts {

/// How a test's name shows a pass.
inline std::ostream& operator<<(std::ostream& out, Pass pass) { return out << to_string(pass); }

}  // namespace ringlab::layouts

/// What the suites of layouts/ share: the cases that they run over, seeded random masks and layouts, files that remove
/// themselves.
namespace ringlab::layouts::testing {

/// A prime number of tokens: no layout divides it, so every case is padded as well.
inline constexpr std::int64_t case_tokens = 71;

using ringlab::tests::Combinations;
using ringlab::tests::Names;
using ringlab::tests::runs_in_this_build;
using ringlab::tests::trials_in_this_build;

/// Masks over case_tokens: an example of each, and joins.
const Names& mask_specs();

/// Examples of all layouts that read no file; "shuffled" is a seeded permutation with about as many runs as tokens,
/// "sorted-shuffled" the same sets of positions in ascending order.
const Names& layout_specs();

const std::vector<int>& rank_counts();

/// A case as an experiment would make it: the tokens padded up until the layout divides them, the mask along with them.
struct Case {
    Mask mask;
    Layout layout;
};
Case make_case(const std::string& mask_spec, const std::string& layout_spec, int ranks);

/// A layout of layout_specs() over the tokens of a mask, if it divides them.
Layout make_case_layout(const std::string& spec, const Mask& mask, int ranks);

/// Segments of one or more ranges with bounds inside, outside and across each other, some with sinks, and scattered
/// valid keys.
Mask random_mask(std::mt19937_64& random, std::int64_t tokens);

/// What interpreters rely on, by the letter of mask.hpp: the first row that breaks it, -1 if none does.
std::int64_t row_that_breaks_the_invariants(const Mask& mask);

/// Visible pairs by the element-wise definition.
std::int64_t count_visible(const Mask& mask, const std::vector<std::int64_t>& rows,
                           const std::vector<std::int64_t>& keys);

/// A text file that exists as long as this object.
class TextFile {
public:
    explicit TextFile(std::string_view text);
    ~TextFile();
    TextFile(const TextFile&) = delete;
    TextFile& operator=(const TextFile&) = delete;

    std::string path() const { return path_.string(); }

private:
    std::filesystem::path path_;
};

/// The message of the ringlab::Error that `action` throws; "(no error)" if it throws none.
std::string error_of(const std::function<void()>& action);

/// A uniform whole number of [low, high].
std::int64_t pick(std::mt19937_64& random, std::int64_t low, std::int64_t high);

}  // namespace ringlab::layouts::testing
