#include "tests/layouts/allocations.hpp"
#include "tests/layouts/cases.hpp"

#include "layouts/schedules/schedule.hpp"

#include <boost/test/unit_test.hpp>

#include <chrono>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;

namespace {

/// Text that looks like what a user types: pieces of the true grammar in random order, then a few random edits.
class Scribbler {
public:
    explicit Scribbler(std::uint64_t seed) : random_(seed) {}

    std::string spec(const std::vector<std::string>& names) {
        std::string text;
        for (auto terms = pick(random_, 1, 3); terms > 0; --terms) {
            text += names[static_cast<std::size_t>(pick(random_, 0, std::ssize(names) - 1))];
            if (pick(random_, 0, 3)) text += ":" + words(pick(random_, 0, 4));
            if (terms > 1) text += "+";
        }
        return edited(std::move(text));
    }

    std::string file() { return edited(words(pick(random_, 0, 80))); }

    std::int64_t tokens() { return pick(random_, 0, 9) ? pick(random_, 1, 100) : huge(); }
    int ranks() { return static_cast<int>(pick(random_, 0, 9) ? pick(random_, 1, 8) : pick(random_, -3, 1 << 16)); }

private:
    std::int64_t huge() {
        const std::vector<std::int64_t> numbers{0,
                                                -1,
                                                std::numeric_limits<std::int64_t>::min(),
                                                std::numeric_limits<std::int64_t>::max(),
                                                std::int64_t{1} << 31,
                                                (std::int64_t{1} << 31) + 1,
                                                std::int64_t{1} << 32,
                                                std::int64_t{1} << 62};
        return numbers[static_cast<std::size_t>(pick(random_, 0, std::ssize(numbers) - 1))];
    }

    std::string words(std::int64_t count) {
        static const std::vector<std::string> separators{",", ",", ",", "-", "x", " ", "\n", ":", "+", "@", ""};
        std::string text;
        for (; count > 0; --count) {
            text += std::to_string(pick(random_, 0, 15) ? pick(random_, 0, 40) : huge());
            if (count > 1) text += separators[static_cast<std::size_t>(pick(random_, 0, std::ssize(separators) - 1))];
        }
        return text;
    }

    std::string edited(std::string text) {
        for (auto edits = pick(random_, 0, 2); edits > 0; --edits) {
            const auto at = static_cast<std::size_t>(pick(random_, 0, std::ssize(text)));
            switch (pick(random_, 0, 3)) {
                case 0: text.insert(at, 1, static_cast<char>(pick(random_, 0, 255))); break;
                case 1: text.erase(at, 1); break;
                case 2: text.insert(at, text.substr(0, 20)); break;
                default: text.resize(at); break;
            }
        }
        return text;
    }

    std::mt19937_64 random_;
};

/// Runs `action` on each of `all` inputs, under the sanitizers of the first eighth; it may throw ringlab::Error with
/// one line and nothing else.
template <class Action>
void fuzz(int all, Action action) {
    const int cases = trials_in_this_build(all, 8);
    // Lists of up to 2^24 lengths are allowed by design: 128 MiB, for a moment twice as a vector grows.
    constexpr std::size_t most_bytes = std::size_t{400} << 20;
    int accepted = 0, refused = 0;
    for (int i = 0; i < cases; ++i) {
        Scribbler scribbler(static_cast<std::uint64_t>(i));
        reset_peak();
        const auto begin = std::chrono::steady_clock::now();
        try {
            action(scribbler);
            ++accepted;
        } catch (const ringlab::Error& error) {
            const std::string message = error.what();
            BOOST_TEST((!message.empty() && message.find('\n') == std::string::npos),
                       "case " << i << " is refused in words of more than one line: " << message);
            ++refused;
        } catch (const std::exception& error) {
            BOOST_ERROR("case " << i << " ends in another exception: " << error.what());
        }
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
        BOOST_TEST(taken.count() < 5, "case " << i << " takes " << taken.count() << " s");
        BOOST_TEST(peak_bytes() < most_bytes, "case " << i << " takes " << peak_bytes() << " bytes");
    }
    BOOST_TEST_MESSAGE(accepted << " accepted, " << refused << " refused");
    // Half of the share that was accepted when a colon with nothing behind it came to be refused.
    BOOST_TEST(accepted > cases / 400);
    BOOST_TEST(refused > cases / 10);
}

template <class Factory>
std::vector<std::string> names_of(const Registry<Factory>& registry) {
    std::vector<std::string> names;
    for (const auto& [name, entry] : registry.entries()) names.push_back(name);
    return names;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fuzzing)

BOOST_AUTO_TEST_CASE(any_text_is_a_mask_or_one_clear_line) {
    const auto names = names_of(masks());
    fuzz(12000, [&](Scribbler& scribbler) {
        const auto tokens = scribbler.tokens();
        const auto mask = make_mask(scribbler.spec(names), tokens);
        BOOST_TEST(mask.segments().back().rows.end == tokens);
        mask.visible(tokens - 1, 0);
    });
}

BOOST_AUTO_TEST_CASE(any_text_is_a_layout_or_one_clear_line) {
    const auto names = names_of(layouts());
    fuzz(12000, [&](Scribbler& scribbler) {
        const auto tokens = scribbler.tokens();
        const auto layout = make_layout(scribbler.spec(names), tokens, scribbler.ranks());
        BOOST_TEST(layout.tokens() == tokens);
    });
}

BOOST_AUTO_TEST_CASE(any_text_is_a_schedule_or_one_clear_line) {
    const auto names = names_of(schedules());
    const auto mask = make_mask("causal", 24);
    const auto layout = make_layout("striped", 24, 4);
    fuzz(6000, [&](Scribbler& scribbler) {
        const Problem problem{.tokens = 24, .query_heads = 8, .kv_heads = 4};
        const auto made = make_schedule(problem, mask, layout, {.schedule = scribbler.spec(names)});
        BOOST_TEST(made->ops(3).next() != nullptr);
    });
}

BOOST_AUTO_TEST_CASE(any_file_is_a_list_of_lengths_or_one_clear_line) {
    fuzz(2000, [](Scribbler& scribbler) {
        const TextFile file(scribbler.file());
        BOOST_TEST(!parse_lengths("@" + file.path(), "lengths").empty());
    });
}

BOOST_AUTO_TEST_CASE(any_file_is_a_permutation_or_one_clear_line) {
    fuzz(2000, [](Scribbler& scribbler) {
        const auto tokens = scribbler.tokens() % 4;
        std::string text = scribbler.file();
        if (text.size() % 2) text = "0 1 2 3";
        const TextFile file(text);
        BOOST_TEST(make_layout("file:" + file.path(), tokens + 1, 1).tokens() == tokens + 1);
    });
}

BOOST_AUTO_TEST_SUITE_END()
