#pragma once

#include <boost/test/framework.hpp>
#include <boost/test/tree/test_unit.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

/// Fewer repetitions under the sanitizers, where a case takes some ten times as long: there every line of code is to
/// run, but a build without them has judged all cases. What ran of how much is printed when a program ends.
/// RINGLAB_ALL_CASES=1 in the environment runs all cases under the sanitizers too, 0 the fewer ones in any build.
namespace ringlab::tests {

inline bool runs_all_cases() {
    static const bool all = [] {
#ifdef RINGLAB_SANITIZED
        const std::string by_default = "0";
#else
        const std::string by_default = "1";
#endif
        const char* said = std::getenv("RINGLAB_ALL_CASES");
        return (said ? said : by_default) != "0";
    }();
    return all;
}

/// Cases of one test that ran, and those that there are.
struct Tally {
    std::size_t ran = 0, all = 0;
};

/// By the name of the test; that of a data-driven one, without the number of its sample.
inline std::map<std::string, Tally>& tallies() {
    static std::map<std::string, Tally> by_test;
    return by_test;
}

inline Tally& tally_of_this_test() {
    auto name = boost::unit_test::framework::current_test_case().full_name();
    if (const auto sample = name.rfind("/_"); sample != name.npos) name.resize(sample);
    return tallies()[name];
}

/// Whether the next case of the test that is running is to run: always in a normal build, once in each `one_in` under
/// the sanitizers. Which of these it is changes from one to the next by a fixed sequence, so that a loop around the
/// case never meets the same mask or pass alone. The first case of a test always runs.
inline bool runs_in_this_build(std::size_t one_in) {
    auto& tally = tally_of_this_test();
    const std::uint64_t number = tally.all++, group = number / one_in;
    // SplitMix64's finaliser, whose low bits depend on all bits of the group's number; 0 stays 0.
    std::uint64_t bits = group;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    bits ^= bits >> 31;
    const bool runs = runs_all_cases() || number % one_in == bits % one_in;
    tally.ran += runs;
    return runs;
}

/// How many of `all` random trials to make, which are worth the same: all in a normal build, one in `one_in` under the
/// sanitizers.
inline int trials_in_this_build(int all, int one_in) {
    const int made = runs_all_cases() ? all : (all + one_in - 1) / one_in;
    auto& tally = tally_of_this_test();
    tally.all += static_cast<std::size_t>(all);
    tally.ran += static_cast<std::size_t>(made);
    return made;
}

/// A fixture of the whole program, which prints what was left out.
struct ThinningReport {
    ~ThinningReport() {
        for (const auto& [test, tally] : tallies())
            if (tally.ran < tally.all) std::printf("%s: %zu of %zu cases ran\n", test.c_str(), tally.ran, tally.all);
    }
};

}  // namespace ringlab::tests
