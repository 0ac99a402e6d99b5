#pragma once

#include "process.hpp"

#include <boost/test/unit_test.hpp>

#include <random>

namespace ringlab::cli::test {

using Random = std::mt19937;

inline std::size_t below(Random& random, std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
}

inline const std::string& any_of(Random& random, const Words& words) { return words[below(random, words.size())]; }

/// One to four bytes changed, left out, put in or repeated, or all after one cut off.
inline std::string mutated(std::string text, Random& random) {
    for (auto changes = 1 + below(random, 4); changes > 0 && !text.empty(); --changes) {
        const auto at = below(random, text.size());
        switch (below(random, 5)) {
            case 0: text[at] = static_cast<char>(below(random, 256)); break;
            case 1: text.erase(at, 1 + below(random, 8)); break;
            case 2: text.insert(at, 1, static_cast<char>(below(random, 256))); break;
            case 3: text.insert(at, text.substr(at, 1 + below(random, 30))); break;
            default:
                if (below(random, 8) == 0) text.resize(at);
        }
    }
    return text;
}

/// A crash would be a signal, a hang the time limit, anything but one line a second line on stderr.
inline void check_ending(const Ending& ending, const std::string& what) {
    BOOST_TEST(!ending.timed_out, what << " hangs");
    BOOST_TEST((ending.status >= 0 && ending.status <= 2), what << " ends with " << ending.status);
    if (ending.status == 1)
        BOOST_TEST(lines_beside_progress(ending.err).size() == 1u, what << " says\n" << ending.err);
    else
        BOOST_TEST(lines_beside_progress(ending.err).empty(), what << " says\n" << ending.err);
}

inline std::string joined(const Words& words) {
    std::string text;
    for (const auto& word : words) text += " '" + word + "'";
    return text;
}

}  // namespace ringlab::cli::test
