// Advice for global batches: it says what the layers below say, and files hold what was advised.

#include "experiments/config/planned.hpp"
#include "experiments/planning/batch_report.hpp"
#include "layouts/batches/ring_search.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

namespace ringlab::experiments {
namespace {

AdvisedMachine cluster() {
    const auto file = RINGLAB_SOURCE_DIR "/experiments/machines/h200_cluster.toml";
    const auto machine = sim::load_machine(file);
    return {"h200_cluster", file, machine, capacity_of(machine, "h200_cluster", {}), {}};
}

Config batch_config() {
    Config config;
    config.problem.heads = "64:8";
    config.problem.head_dim = 128;
    config.problem.arithmetic = "bf16";
    config.sweep.masks = {"causal"};
    config.memory.keep = {"everything"};
    return config;
}

const BatchSharing& sharing_of(const BatchAdvice& advice, const std::string& name) {
    const auto at = std::ranges::find(advice.sharings, name, &BatchSharing::name);
    BOOST_REQUIRE(at != advice.sharings.end());
    return *at;
}

/// A long document that fills a packing, and a packing of short ones.
Batch long_and_short() { return {{{32768}, std::vector<std::int64_t>(32, 1024)}}; }

BatchAdvice advice_for(const Config& config, const AdvisedMachine& machine, const Batch& batch) {
    return advise_batch({config, machine, 16, layouts::nested_ring_sizes(16, 8), 4096}, batch);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(batch_advice)

BOOST_AUTO_TEST_CASE(packings_are_drawn_to_the_token_and_batches_follow_each_other) {
    const std::vector<std::int64_t> lengths{100, 2000, 700, 9000};
    const auto first = drawn_batch(lengths, 10000, 3, 5, 0), second = drawn_batch(lengths, 10000, 3, 5, 1);
    for (const auto* batch : {&first, &second})
        for (const auto& packing : batch->packings)
            BOOST_TEST(std::accumulate(packing.begin(), packing.end(), std::int64_t{0}) == 10000);
    BOOST_TEST((second.packings[1] == drawn_packing(lengths, 10000, 5, 4)));
    BOOST_TEST((first.packings != second.packings));
    BOOST_TEST((first.packings != drawn_batch(lengths, 10000, 3, 6, 0).packings));
    for (std::size_t i = 0; i + 1 < first.packings[0].size(); ++i)
        BOOST_TEST((std::ranges::find(lengths, first.packings[0][i]) != lengths.end()));
    BOOST_TEST(packed_mask("causal", {3, 4}) == "causal+documents:3,4");
}

BOOST_AUTO_TEST_CASE(the_packings_as_given_cost_what_their_plans_cost) {
    const auto config = batch_config();
    const auto machine = cluster();
    const auto batch = long_and_short();
    const auto advice = advice_for(config, machine, batch);
    const auto& given = sharing_of(advice, "as given");
    BOOST_TEST(given.rings.assignment.rings == (std::vector{8, 8}), boost::test_tools::per_element());
    auto problem = problem_from(config.problem);
    problem.tokens = 32768;
    const auto prices = prices_of("planned:" + machine.file, "seen", problem, 8, layouts::DType::fp32);
    for (std::size_t ring = 0; ring < 2; ++ring) {
        const auto mask = layouts::make_mask(packed_mask("causal", batch.packings[ring]), 32768);
        BOOST_TEST(given.rings.seconds[ring] ==
                       layouts::plan_cost(layouts::planned_layout(mask, 8, prices), mask, prices).total(),
                   boost::test_tools::tolerance(1e-12));
    }
    BOOST_TEST(given.most_tokens == 4096);
    BOOST_TEST(given.simulated.size() == 2u);
    BOOST_TEST(given.balance() > 1.5);
}

// The long document needs more than its eight GPUs, and the short ones leave theirs idle. On one ring of 16, or with
// other sizes, the step takes less time.
BOOST_AUTO_TEST_CASE(a_document_that_fills_its_packing_gets_a_larger_ring) {
    const auto config = batch_config();
    const auto machine = cluster();
    const auto advice = advice_for(config, machine, long_and_short());
    const auto& given = sharing_of(advice, "as given");
    const auto& best = advice.sharings[advice.best];
    BOOST_TEST(best.seconds() < 0.8 * given.seconds());
    for (const auto& one : advice.sharings) {
        BOOST_TEST(one.seconds() >= best.seconds());
        BOOST_TEST(one.rings.slowest() <= given.rings.slowest() * (1 + 1e-12));
        BOOST_TEST(one.most_tokens <= 4096);
        std::set<std::size_t> seen;
        for (const auto& documents : one.rings.assignment.documents) seen.insert(documents.begin(), documents.end());
        BOOST_TEST(seen.size() == advice.lengths.size());
    }
    BOOST_TEST(sharing_of(advice, "one ring").rings.assignment.rings == (std::vector{16}),
               boost::test_tools::per_element());
    const auto& differ = sharing_of(advice, "sizes differ");
    BOOST_TEST(differ.rings.slowest() <= sharing_of(advice, "one ring").rings.slowest());
}

BOOST_AUTO_TEST_CASE(a_file_has_a_line_with_ranks_and_documents_for_each_advised_ring) {
    BatchAdvice advice;
    advice.lengths = {10, 20, 30, 40};
    advice.sharings.resize(2);
    advice.sharings[1].rings = {{{4, 2, 2}, {{1, 3}, {}, {0, 2}}}, {1.0, 0.0, 0.5}};
    advice.best = 1;
    const auto text = assignment_text(advice);
    BOOST_TEST(text.starts_with("# Ringlab assignment"));
    BOOST_TEST(text.substr(text.find('\n') + 1) == "0-3 1 3\n6-7 0 2\n");
}

BOOST_AUTO_TEST_CASE(without_a_budget_nothing_is_simulated_and_what_does_not_fit_is_not_advised) {
    auto config = batch_config();
    config.advice.budget_seconds = 0;
    auto machine = cluster();
    const auto advice = advice_for(config, machine, long_and_short());
    for (const auto& one : advice.sharings) BOOST_TEST(one.simulated.empty());
    // Less memory than the advised sharing needs, but enough for another one.
    std::int64_t least = advice.sharings[0].memory;
    for (const auto& one : advice.sharings) least = std::min(least, one.memory);
    BOOST_REQUIRE(advice.sharings[advice.best].memory > least);
    machine.capacity.device = least;
    const auto narrow = advice_for(config, machine, long_and_short());
    BOOST_TEST(narrow.sharings[narrow.best].fits);
    BOOST_TEST(!narrow.sharings[advice.best].fits);
    BOOST_TEST(narrow.fits());
    machine.capacity.device = least - 1;
    const auto none = advice_for(config, machine, long_and_short());
    BOOST_TEST(!none.fits());
    const auto text = batch_text({none}, {config, machine, 16, {8}, 4096});
    BOOST_TEST(text.find("Nothing fits into the") != std::string::npos, text);
    BOOST_TEST(text.find("advised") == std::string::npos, text);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
