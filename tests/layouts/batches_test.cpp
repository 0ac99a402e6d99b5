// Documents of a global batch on rings: the assignment, and the choice of ring sizes.

#include "layouts/batches/ring_search.hpp"
#include "tests/layouts/cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {
constexpr auto infinity = std::numeric_limits<double>::infinity();
/// Work of causal attention: pairs, and a part for each token.
BatchDocument causal_document(std::int64_t tokens) {
    const auto length = static_cast<double>(tokens);
    return {tokens, length * length / 2 + 100 * length};
}

/// Half of the documents are short and few are long.
BatchDocument random_document(std::mt19937_64& random, std::int64_t longest) {
    const auto length = std::lognormal_distribution<>(6.3, 1.6)(random);
    return causal_document(std::clamp<std::int64_t>(static_cast<std::int64_t>(length), 1, longest));
}

std::vector<BatchDocument> random_batch(std::mt19937_64& random, std::size_t count, std::int64_t longest) {
    std::vector<BatchDocument> documents;
    while (documents.size() < count) documents.push_back(random_document(random, longest));
    return documents;
}

/// Packings of random documents, the last of each cut: rings of one size have no tokens to spare.
std::vector<BatchDocument> random_packings(std::mt19937_64& random, int packings, std::int64_t tokens) {
    std::vector<BatchDocument> documents;
    for (int i = 0; i < packings; ++i)
        for (auto left = tokens; left > 0; left -= documents.back().tokens)
            documents.push_back(random_document(random, left));
    return documents;
}

std::int64_t all_tokens(std::span<const BatchDocument> documents) {
    std::int64_t tokens = 0;
    for (const auto& one : documents) tokens += one.tokens;
    return tokens;
}

std::int64_t tokens_of(std::span<const BatchDocument> documents, std::span<const std::size_t> some) {
    std::int64_t tokens = 0;
    for (const auto document : some) tokens += documents[document].tokens;
    return tokens;
}

double work_of(std::span<const BatchDocument> documents, std::span<const std::size_t> some) {
    double work = 0;
    for (const auto document : some) work += documents[document].seconds;
    return work;
}

/// Every document on one ring, numbers ascending, and no more tokens than there is room for.
void check_assignment(const Assignment& assignment, std::span<const BatchDocument> documents,
                      const std::vector<int>& rings, std::int64_t most_tokens) {
    BOOST_TEST(assignment.rings == rings, boost::test_tools::per_element());
    BOOST_REQUIRE(assignment.documents.size() == rings.size());
    std::vector<int> times(documents.size());
    for (std::size_t ring = 0; ring < rings.size(); ++ring) {
        BOOST_TEST(std::ranges::is_sorted(assignment.documents[ring]));
        BOOST_TEST(tokens_of(documents, assignment.documents[ring]) <= rings[ring] * most_tokens);
        for (const auto document : assignment.documents[ring]) ++times.at(document);
    }
    BOOST_TEST(std::ranges::all_of(times, [](int count) { return count == 1; }));
}

/// The least step of all assignments that have room, by trying them all; infinity if there is none.
double least_of_all(std::span<const BatchDocument> documents, const std::vector<int>& rings, std::int64_t most_tokens,
                    const RingPrice& price) {
    std::vector<std::vector<std::size_t>> on(rings.size());
    auto least = infinity;
    const auto extend = [&](auto self, std::size_t document) -> void {
        if (document == documents.size()) {
            double step = 0;
            for (std::size_t ring = 0; ring < rings.size(); ++ring) step = std::max(step, price(rings[ring], on[ring]));
            least = std::min(least, step);
            return;
        }
        for (std::size_t ring = 0; ring < rings.size(); ++ring) {
            on[ring].push_back(document);
            if (tokens_of(documents, on[ring]) <= rings[ring] * most_tokens) self(self, document + 1);
            on[ring].pop_back();
        }
    };
    extend(extend, 0);
    return least;
}

RingPrice even_price(std::span<const BatchDocument> documents) {
    return [documents](int ranks, std::span<const std::size_t> some) { return work_of(documents, some) / ranks; };
}

/// Rings whose ranks share the work of a document the worse the more of them there are.
RingPrice price_of_large_rings(std::span<const BatchDocument> documents) {
    return [documents](int ranks, std::span<const std::size_t> some) {
        return work_of(documents, some) / ranks * (1 + 0.1 * std::log2(ranks));
    };
}

/// Times over the least possible ones.
struct Ratios {
    double sum = 0, worst = 0;
    int count = 0;

    void add(double ratio) { ++count, sum += ratio, worst = std::max(worst, ratio); }
    void check(double most_mean, double most_worst) const {
        BOOST_TEST(sum / count < most_mean);
        BOOST_TEST(worst < most_worst);
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(batches)

// 8000 tokens on one rank of each of three rings. By hand: the two long documents on two rings, all else on the third.
BOOST_AUTO_TEST_CASE(long_documents_go_to_different_rings) {
    std::vector<BatchDocument> documents;
    for (const auto tokens : {4000, 4000, 1000, 1000, 1000, 1000}) documents.push_back(causal_document(tokens));
    const auto found = assign_documents(documents, {{1, 1, 1}, 8000});
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST((found->documents[0] == std::vector<std::size_t>{0}));
    BOOST_TEST((found->documents[1] == std::vector<std::size_t>{1}));
    BOOST_TEST((found->documents[2] == std::vector<std::size_t>{2, 3, 4, 5}));
}

// The ring of three ranks takes three times the work.
BOOST_AUTO_TEST_CASE(work_goes_by_the_ranks_of_a_ring_and_by_its_slowdown) {
    const std::vector<BatchDocument> documents(8, {100, 1.0});
    const auto by_ranks = assign_documents(documents, {{3, 1}, 800});
    BOOST_REQUIRE(by_ranks.has_value());
    BOOST_TEST(by_ranks->documents[0].size() == 6u);
    const auto by_slowdown = assign_documents(documents, {{3, 1}, 800, {3, 1}});
    BOOST_REQUIRE(by_slowdown.has_value());
    BOOST_TEST(by_slowdown->documents[0].size() == 4u);
}

// Longest first gives 3 + 2 + 2 and 3 + 2. An exchange of 2 + 2 for 3 makes both 6.
BOOST_AUTO_TEST_CASE(two_documents_are_exchanged_for_one) {
    const std::vector<BatchDocument> documents{{10, 3}, {10, 3}, {10, 2}, {10, 2}, {10, 2}};
    const auto found = assign_documents(documents, {{1, 1}, 50});
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST(priced(*found, even_price(documents)).slowest() == 6.0);
}

BOOST_AUTO_TEST_CASE(any_batch_is_assigned_once_with_room_and_the_same_again) {
    std::mt19937_64 random(31);
    constexpr int tried = 60;
    int found = 0;
    for (int trial = 0; trial < tried; ++trial) {
        const auto documents = random_batch(random, static_cast<std::size_t>(pick(random, 1, 120)), 20000);
        std::vector<int> rings;
        for (auto count = pick(random, 1, 6); count > 0; --count) rings.push_back(1 << pick(random, 0, 4));
        const auto ranks = std::accumulate(rings.begin(), rings.end(), 0);
        const auto most = all_tokens(documents) / ranks + 1 + pick(random, 0, 3000);
        const auto assignment = assign_documents(documents, {rings, most});
        if (!assignment) continue;
        ++found;
        check_assignment(*assignment, documents, rings, most);
        BOOST_TEST((*assignment == *assign_documents(documents, {rings, most})));
    }
    BOOST_TEST(found > tried / 2, found << " of " << tried);
}

// Packings whose tokens leave nothing to spare. A ring has at least its longest document, and all rings share the work.
BOOST_AUTO_TEST_CASE(full_packings_are_exchanged_to_the_last_token_and_balanced) {
    std::mt19937_64 random(32);
    constexpr int packings = 8, ranks = 8, trials = 60;
    constexpr std::int64_t share = 8192;
    Ratios ratios;
    for (int trial = 0; trial < trials; ++trial) {
        const auto documents = random_packings(random, packings, share * ranks);
        const std::vector<int> rings(packings, ranks);
        const auto assignment = assign_documents(documents, {rings, share});
        if (!assignment) continue;
        check_assignment(*assignment, documents, rings, share);
        double all = 0, longest = 0;
        for (const auto& one : documents) all += one.seconds, longest = std::max(longest, one.seconds);
        const auto ratio =
            priced(*assignment, even_price(documents)).slowest() / (std::max(all / packings, longest) / ranks);
        ratios.add(ratio);
    }
    BOOST_TEST(ratios.count > 0.95 * trials, ratios.count << " of " << trials);
    ratios.check(1.02, 1.1);
}

BOOST_AUTO_TEST_CASE(no_assignment_of_few_documents_is_much_better) {
    std::mt19937_64 random(33);
    Ratios ratios;
    int possible = 0;
    for (int trial = 0; trial < 300; ++trial) {
        const auto documents = random_batch(random, static_cast<std::size_t>(pick(random, 2, 7)), 6000);
        const auto rings = trial % 2 ? std::vector{2, 1} : std::vector{2, 1, 1};
        const auto most = all_tokens(documents) / 3 + pick(random, 0, 4000);
        const auto least = least_of_all(documents, rings, most, even_price(documents));
        const auto assignment = assign_documents(documents, {rings, most});
        if (least == infinity) {
            BOOST_TEST(!assignment.has_value());
            continue;
        }
        ++possible;
        if (!assignment) continue;
        const auto ratio = priced(*assignment, even_price(documents)).slowest() / least;
        BOOST_TEST(ratio > 1 - 1e-12);
        ratios.add(ratio);
    }
    BOOST_TEST(possible > 200);
    BOOST_TEST(ratios.count > 0.97 * possible, ratios.count << " of " << possible);
    ratios.check(1.01, 1.1);
}

BOOST_AUTO_TEST_CASE(what_has_no_room_is_not_assigned_and_nonsense_is_refused) {
    const std::vector<BatchDocument> documents{{5, 1}, {5, 1}, {5, 1}};
    BOOST_TEST(!assign_documents(documents, {{1, 1}, 8}).has_value());
    BOOST_TEST(!assign_documents(documents, {{2, 1}, 4}).has_value());
    BOOST_TEST(assign_documents(documents, {{2, 1}, 5}).has_value());
    BOOST_TEST(error_of([&] { assign_documents(documents, {{}, 8}); }) != "");
    BOOST_TEST(error_of([&] { assign_documents(documents, {{1, 0}, 8}); }) != "");
    BOOST_TEST(error_of([&] { assign_documents(documents, {{1, 1}, 8, {1}}); }) != "");
    BOOST_TEST(error_of([&] { assign_documents(std::vector<BatchDocument>{{0, 1}}, {{1}, 8}); }) != "");
}

struct Sizes {
    int ranks, ranks_per_host;
    std::vector<int> sizes;
};
std::ostream& operator<<(std::ostream& out, const Sizes& one) {
    return out << one.ranks << " of " << one.ranks_per_host;
}

const std::vector<Sizes> nested{{64, 8, {1, 2, 4, 8, 16, 32, 64}},
                                {24, 8, {1, 2, 4, 8, 16, 24}},
                                {12, 6, {1, 2, 6, 12}},
                                {4, 8, {1, 2, 4}},
                                {1, 8, {1}},
                                {72, 72, {1, 2, 4, 8, 72}}};

BOOST_DATA_TEST_CASE(sizes_of_rings_divide_a_host_or_fill_hosts, data::make(nested), one) {
    BOOST_TEST(nested_ring_sizes(one.ranks, one.ranks_per_host) == one.sizes, boost::test_tools::per_element());
}

// One document has half of all tokens and most of the work. Rings of two ranks have no room for it, and larger ones
// share work badly: by hand it gets a ring of four, and each pair of the others one of two.
BOOST_AUTO_TEST_CASE(a_long_document_gets_a_large_ring_and_short_ones_small_rings) {
    std::vector<BatchDocument> documents{{4000, 8.0}};
    for (int i = 0; i < 4; ++i) documents.push_back({1000, 2.0});
    const auto found = choose_rings(documents, {8, {1, 2, 4, 8}, 1000}, price_of_large_rings(documents));
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST(found->assignment.rings == (std::vector{4, 1, 1, 1, 1}), boost::test_tools::per_element());
    BOOST_TEST((found->assignment.documents[0] == std::vector<std::size_t>{0}));
    BOOST_TEST(found->slowest() == 2.4, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(found->mean() == 2.2, boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(no_rings_for_few_documents_are_much_better) {
    std::mt19937_64 random(34);
    const std::vector<std::vector<int>> all{{4}, {2, 2}, {2, 1, 1}, {1, 1, 1, 1}};
    Ratios ratios;
    int possible = 0;
    for (int trial = 0; trial < 100; ++trial) {
        const auto documents = random_batch(random, static_cast<std::size_t>(pick(random, 2, 6)), 6000);
        const auto price = price_of_large_rings(documents);
        const auto most = all_tokens(documents) / 4 + 1 + pick(random, 0, 2000);
        auto least = infinity;
        for (const auto& rings : all) least = std::min(least, least_of_all(documents, rings, most, price));
        const auto chosen = choose_rings(documents, {4, {1, 2, 4}, most}, price);
        if (least == infinity) {
            BOOST_TEST(!chosen.has_value());
            continue;
        }
        ++possible;
        BOOST_REQUIRE(chosen.has_value());
        check_assignment(chosen->assignment, documents, chosen->assignment.rings, most);
        const auto ratio = chosen->slowest() / least;
        BOOST_TEST(ratio > 1 - 1e-12);
        ratios.add(ratio);
    }
    BOOST_TEST(possible > 90);
    ratios.check(1.01, 1.1);
}

// The ring of two ranks turns out to take twice as long as its documents' work says.
BOOST_AUTO_TEST_CASE(a_ring_that_turns_out_slow_gets_less_work) {
    const std::vector<BatchDocument> documents(30, {100, 1.0});
    const RingPrice price = [](int ranks, std::span<const std::size_t> some) {
        return static_cast<double>(some.size()) / ranks * (ranks == 2 ? 2.0 : 1.0);
    };
    const auto found = exchange_documents(documents, {{2, 1}, 3000}, price);
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST(found->assignment.documents[0].size() == 15u);
    BOOST_TEST(found->slowest() == 15.0);
}

BOOST_AUTO_TEST_SUITE_END()
