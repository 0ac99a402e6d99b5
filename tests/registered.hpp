#pragma once

#include "layouts/schedules/schedule.hpp"

#include <boost/mpl/bool.hpp>
#include <boost/test/data/monomorphic/fwd.hpp>
#include <boost/test/data/size.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace ringlab::tests {
class Names;
}

namespace boost::unit_test::data::monomorphic {

template <>
struct is_dataset<ringlab::tests::Names> : mpl::true_ {};

/// A base in this namespace, so that the operators of datasets are found for what derives from it.
struct FoundHere {};

}  // namespace boost::unit_test::data::monomorphic

/// What suites run over: the examples of all layouts and schedules that are registered, so that a new one needs no edit
/// here. Masks have theirs in layouts/mask_oracles/.
namespace ringlab::tests {

/// A dataset of names. They are asked for when Boost.Test makes the test cases, because the constants that register
/// things may be initialised after a dataset is.
class Names : boost::unit_test::data::monomorphic::FoundHere {
public:
    static constexpr int arity = 1;
    using sample = std::string;
    using iterator = std::vector<std::string>::const_iterator;

    explicit Names(std::function<std::vector<std::string>()> ask) : ask_(std::move(ask)) {}

    iterator begin() const { return all().begin(); }
    iterator end() const { return all().end(); }
    boost::unit_test::data::size_t size() const { return all().size(); }
    std::size_t count() const { return all().size(); }
    const std::string& operator[](std::size_t i) const { return all()[i]; }
    std::size_t place_of(const std::string& name) const {
        return static_cast<std::size_t>(std::ranges::find(all(), name) - all().begin());
    }

private:
    const std::vector<std::string>& all() const {
        if (names_.empty()) names_ = ask_();
        return names_;
    }

    std::function<std::vector<std::string>()> ask_;
    mutable std::vector<std::string> names_;
};

/// The examples of all that a registry has, by name.
template <class Factory>
std::vector<std::string> examples_in(const layouts::Registry<Factory>& registry) {
    std::vector<std::string> all;
    for (const auto& [name, entry] : registry.entries())
        all.insert(all.end(), entry.examples.begin(), entry.examples.end());
    return all;
}

inline std::vector<std::string> layout_examples() { return examples_in(layouts::layouts()); }

/// The least number of tokens that a layout divides and that is at least `tokens`.
inline std::int64_t padded_tokens(const std::string& layout, std::int64_t tokens, int ranks) {
    const auto granularity = layouts::layout_granularity(layout, ranks);
    return (tokens + granularity - 1) / granularity * granularity;
}

/// Whether a schedule can be used for the heads and the latent of a problem on so many ranks: whether it can be made.
/// schedule_test.cpp says which of today's schedules may refuse what, so that one that refuses more is found there.
inline bool suits(layouts::Problem problem, const std::string& schedule_name, int ranks) {
    problem.tokens = ranks;
    problem.queries.clear();
    try {
        const auto mask = layouts::make_mask("full", ranks);
        const auto layout = layouts::make_layout("contiguous", ranks, ranks);
        for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward})
            layouts::make_schedule(problem, mask, layout, {.schedule = schedule_name, .pass = pass});
        return true;
    } catch (const Error&) {
        return false;
    }
}

/// The examples of schedules that suit the problem on one of these numbers of ranks; if it has a latent, also those
/// that send what is expanded of it.
inline std::vector<std::string> schedules_for(const layouts::Problem& problem,
                                              const std::vector<int>& ranks = {1, 2, 3, 4, 5, 6, 7, 8}) {
    auto all = examples_in(layouts::schedules());
    if (problem.latent.is_given())
        for (const auto& schedule : examples_in(layouts::schedules())) all.push_back("expanded:" + schedule);
    std::erase_if(all, [&](const std::string& schedule) {
        return std::ranges::none_of(ranks, [&](int count) { return suits(problem, schedule, count); });
    });
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    return all;
}

/// Counts what a test case skips. It fails if everything was skipped, and says how much was.
class Combinations {
public:
    Combinations() = default;
    Combinations(const Combinations&) = delete;
    Combinations& operator=(const Combinations&) = delete;
    ~Combinations() {
        BOOST_TEST_MESSAGE(taken_ << " combinations run, " << skipped_ << " skipped");
        BOOST_CHECK_MESSAGE(taken_ > 0, "all of " << skipped_ << " combinations were skipped");
    }

    /// Returns `suitable`, and counts it.
    bool take(bool suitable) {
        ++(suitable ? taken_ : skipped_);
        return suitable;
    }

private:
    int taken_ = 0, skipped_ = 0;
};

}  // namespace ringlab::tests
