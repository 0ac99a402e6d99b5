#include "layouts/schedules/schedule.hpp"

#include "tests/layouts/allocations.hpp"
#include "tests/layouts/schedule_checker.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <set>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

/// Under the sanitizers one case of so many runs.
constexpr std::size_t thinned = 50;

/// A backward pass has no partial results, so how a forward pass combines them makes no other schedule of it.
constexpr std::pair<Pass, Accumulation> ways[] = {{Pass::forward, Accumulation::carry},
                                                  {Pass::forward, Accumulation::partials},
                                                  {Pass::backward, Accumulation::carry}};

std::string first_of(const std::vector<std::string>& found) { return found.empty() ? "" : found.front(); }

/// The operations but one; whoever waited for it no longer does.
std::vector<Op> erased(std::vector<Op> ops, std::size_t index) {
    const auto gone = static_cast<OpIndex>(index);
    ops.erase(ops.begin() + gone);
    for (auto& op : ops) {
        const auto after = op.after_storage;
        const auto count = std::exchange(op.after_count, 0);
        for (int d = 0; d < count; ++d)
            if (const auto a = after[static_cast<std::size_t>(d)]; a != gone) op.run_after(a > gone ? a - 1 : a);
    }
    return ops;
}

/// Positions with query rows in some of a case's tokens: a suffix, the newest token of three sequences, one in the
/// middle.
std::vector<Interval> few_queries(std::int64_t tokens, int pattern) {
    if (pattern == 0) return {{tokens - tokens / 4, tokens}};
    if (pattern == 1) return {{tokens / 3 - 1, tokens / 3}, {tokens / 2, tokens / 2 + 1}, {tokens - 1, tokens}};
    return {{tokens / 2, tokens / 2 + 1}};
}

const Problem with_latent{
    .batch = 3, .query_heads = 4, .kv_heads = 4, .head_dim = 24, .value_dim = 16, .latent = {.rank = 10, .shared = 6}};

/// Looks for violations under all masks, on all numbers of ranks and in all ways. `change` may change each problem.
void check_all(
    Problem problem, const std::string& schedule_name, const std::string& layout_spec,
    const std::function<void(Problem&)>& change = [](Problem&) {}) {
    Combinations combinations;
    for (const int ranks : rank_counts()) {
        if (!combinations.take(ringlab::tests::suits(problem, schedule_name, ranks))) continue;
        for (const auto& mask_spec : mask_specs()) {
            const auto c = make_case(mask_spec, layout_spec, ranks);
            problem.tokens = c.mask.tokens();
            for (const auto& [pass, accumulation] : ways) {
                change(problem);
                if (!runs_in_this_build(thinned)) continue;
                const auto made = make_schedule(
                    problem, c.mask, c.layout, {.schedule = schedule_name, .pass = pass, .accumulation = accumulation});
                const auto found = violations(*made, written(*made));
                BOOST_TEST(first_of(found) == "", mask_spec << ", " << ranks << " ranks, " << to_string(pass) << ", "
                                                            << problem.rows() << " rows: " << first_of(found));
            }
        }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(schedule)

BOOST_DATA_TEST_CASE(every_schedule_does_each_visible_piece_of_work_once_and_safely,
                     data::make(schedule_names) * data::make(layout_specs()), schedule_name, layout_spec) {
    check_all(eight_heads, schedule_name, layout_spec);
}

BOOST_DATA_TEST_CASE(every_schedule_serves_rows_that_are_fewer_than_keys,
                     data::make(schedule_names) * data::make(layout_specs()), schedule_name, layout_spec) {
    int number = 0;
    check_all(eight_heads, schedule_name, layout_spec, [&](Problem& problem) {
        problem.queries = few_queries(problem.tokens, (number + number / 3) % 3);  // another of each way at each mask
        ++number;
    });
}

BOOST_DATA_TEST_CASE(a_latent_is_there_for_each_visible_piece_of_work,
                     Names([] { return ringlab::tests::schedules_for(with_latent); }) *
                         data::make({"contiguous", "zigzag", "striped:3", "shuffled"}),
                     schedule_name, layout_spec) {
    check_all(with_latent, schedule_name, layout_spec);
}

BOOST_AUTO_TEST_CASE(what_travels_of_a_latent_is_as_long_as_it_is) {
    const auto c = exact_case("full", "contiguous", 64, 4);
    auto problem = with_latent;
    problem.tokens = c.mask.tokens();
    const auto made = [&](const std::string& schedule_name, Pass pass) {
        return make_schedule(problem, c.mask, c.layout, {.schedule = schedule_name, .pass = pass});
    };
    const std::int64_t block = 3 * 16;  // tokens of a shard, over the batch
    for (const std::string schedule_name : {"ring", "all-gather", "pull"}) {
        // 3 blocks come to each of 4 ranks, of 16 numbers of 2 bytes; gradients as many times, and home, in 4 bytes.
        BOOST_TEST(traffic_of(*made(schedule_name, Pass::forward), Pool::latent) == (Traffic{12, 12 * block * 16 * 2}));
        BOOST_TEST(traffic_of(*made(schedule_name, Pass::forward), Pool::kv) == Traffic{});
        const std::int64_t sums = schedule_name == "ring" ? 16 : 12;
        BOOST_TEST(traffic_of(*made(schedule_name, Pass::backward), Pool::dlatent) ==
                   (Traffic{sums, sums * block * 16 * 4}));
    }
    BOOST_TEST(traffic_of(*made("expanded:ring", Pass::forward), Pool::kv) ==
               (Traffic{12, 12 * block * 4 * (24 + 16) * 2}));
    // One slot for what is expanded, whichever block it is of.
    const auto ring = made("ring", Pass::backward);
    for (const auto& group : ring->slots())
        if (group.pool == Pool::kv || group.pool == Pool::dkv) BOOST_TEST(group.count == 1);
}

// What the checker must not let through: every single change to a right program that makes it wrong.
BOOST_DATA_TEST_CASE(a_program_with_one_mistake_is_caught, data::make(schedule_names_of_4_ranks) * data::make(passes),
                     schedule_name, pass) {
    const auto c = make_case("causal", "zigzag", 4);
    const auto made = schedule_of(c, {.schedule = schedule_name, .pass = pass});
    const auto right = written(*made);
    BOOST_REQUIRE_EQUAL(first_of(violations(*made, right)), "");
    int tried = 0;
    const auto expect_caught = [&](std::size_t rank, std::size_t i, const char* mistake, auto&& change) {
        ++tried;
        if (!runs_in_this_build(8)) return;
        auto wrong = right;
        change(wrong[rank], wrong[rank][i]);
        BOOST_TEST(!violations(*made, wrong).empty(), mistake << ", rank " << rank << " op " << i << " passes");
    };
    const std::size_t rank = 1;
    for (std::size_t i = 0; i < right[rank].size(); ++i) {
        const auto& op = right[rank][i];
        for (int d = 0; d < op.after_count; ++d) {
            auto without = right[rank];
            const auto index = without[i].after_storage[static_cast<std::size_t>(d)];
            auto& storage = without[i].after_storage;
            std::copy(storage.begin() + d + 1, storage.begin() + without[i].after_count, storage.begin() + d);
            --without[i].after_count;
            // A dependency that lanes imply anyway, such as a second one on the same lane, is harmless to drop.
            if (happens_before(without, index, static_cast<OpIndex>(i))) continue;
            // A collective ends before the first attend of its launch; a rank's own block would be there anyway.
            if (op.kind == OpKind::attend && op.slot(Pool::kv) == 0) continue;
            expect_caught(rank, i, "a dropped dependency", [&](auto& ops, Op&) { ops = without; });
        }
        expect_caught(rank, i, "a missing operation", [&](auto& ops, Op&) { ops = erased(ops, i); });
        expect_caught(rank, i, "another block", [&](auto&, Op& o) { o.part.block = (o.part.block + 1) % 4; });
        expect_caught(rank, i, "another head",
                      [&](auto&, Op& o) { o.part.heads.begin = (o.part.heads.begin + 1) % 4; });
        // A token that nobody sees, or a row that sees nothing here, is not missed.
        auto less = op.part;
        --less.tokens.end;
        if (op.kind != OpKind::attend || made->pair_count(op.rows(), less) < op.pair_count)
            expect_caught(rank, i, "a token less", [&](auto&, Op& o) { o.part = less; });
        if (op.kind == OpKind::attend) {
            expect_caught(rank, i, "a block attended to twice", [&](auto& ops, Op& o) { ops.push_back(Op(o)); });
            expect_caught(rank, i, "step 0's block again",
                          [&](auto&, Op& o) { o.slot(Pool::kv) = o.slot(Pool::kv) == 0 ? 1 : 0; });
            expect_caught(rank, i, "other rows", [&](auto&, Op& o) { o.rows().block = (o.rows().block + 1) % 4; });
            auto fewer = op.rows();
            ++fewer.tokens.begin;
            if (made->pair_count(fewer, op.part) < op.pair_count)
                expect_caught(rank, i, "a row less", [&](auto&, Op& o) { o.rows() = fewer; });
            expect_caught(rank, i, "begins or not", [&](auto&, Op& o) { o.begins = !o.begins; });
            if (pass == Pass::forward) expect_caught(rank, i, "ends or not", [&](auto&, Op& o) { o.ends = !o.ends; });
            expect_caught(rank, i, "visible pairs off by one", [&](auto&, Op& o) { ++o.pair_count; });
        }
        if (op.transfers()) {
            expect_caught(rank, i, "another slot", [&](auto&, Op& o) { o.slot(o.pool) = o.slot() == 1 ? 2 : 1; });
            if (op.kind != OpKind::fetch)  // meets no other half
                expect_caught(rank, i, "another channel", [&](auto&, Op& o) { o.channel = 1 - o.channel; });
            expect_caught(rank, i, "another pool",
                          [&](auto&, Op& o) { o.pool = o.pool == Pool::kv ? Pool::dkv : Pool::kv; });
            expect_caught(rank, i, "another peer", [&](auto&, Op& o) { o.peer = (o.peer + 2) % 4; });
            expect_caught(rank, i, "bytes for twice the heads", [&](auto&, Op& o) { o.bytes *= 2; });
        }
        if (op.kind == OpKind::add)
            expect_caught(rank, i, "the wrong part added", [&](auto&, Op& o) { std::swap(o.slot(o.pool), o.source); });
    }
    BOOST_TEST(tried > 20);
}

BOOST_AUTO_TEST_CASE(sends_that_wait_for_each_other_in_a_circle_are_caught) {
    const auto c = exact_case("full", "contiguous", 8, 2);
    const auto made = schedule_of(c, {.schedule = "ring"});
    auto program = written(*made);
    // Each rank's send waits for its receive: nobody begins.
    for (auto& ops : program) {
        const auto send = std::find_if(ops.begin(), ops.end(), [](const Op& o) { return o.kind == OpKind::send; });
        const auto receive =
            std::find_if(ops.begin(), ops.end(), [](const Op& o) { return o.kind == OpKind::receive; });
        BOOST_REQUIRE((send == ops.begin() && receive == ops.begin() + 1));
        std::iter_swap(send, receive);
        ops[1].run_after(0);
    }
    BOOST_TEST(first_of(violations(*made, program)).find("can never begin") != std::string::npos);
}

BOOST_DATA_TEST_CASE(one_rank_alone_moves_nothing,
                     Names([] { return ringlab::tests::schedules_for(eight_heads, {1}); }) * data::make(passes),
                     schedule_name, pass) {
    const auto c = exact_case("causal", "contiguous", 12, 1);
    const auto made = schedule_of(c, {.schedule = schedule_name, .pass = pass});
    const auto program = written(*made);
    for (const auto& op : program.front()) BOOST_CHECK(op.kind == OpKind::attend);
}

BOOST_AUTO_TEST_CASE(a_stream_of_16384_ranks_does_not_grow) {
    constexpr int ranks = 16384;
    Combinations combinations;
    std::int64_t longest = 0;
    for (const auto& schedule_name : schedule_names) {
        const auto name = Spec::parse(schedule_name).name;
        const bool looks_at_each_pair_of_ranks =
            name == "double-ring" || name == "merge" || name == "joined-merge" || name == "seen";
        if (!combinations.take(!looks_at_each_pair_of_ranks && suits(schedule_name, ranks))) continue;
        const auto c = exact_case("causal", "zigzag", std::int64_t{ranks} * 64, ranks);
        for (const auto pass : passes) {
            const auto made = schedule_of(c, {.schedule = schedule_name, .pass = pass});
            auto stream = made->ops(ranks / 3);
            BOOST_REQUIRE(stream.next() != nullptr);
            const auto before = allocations();
            std::int64_t ops = 0;
            for (; ops < 20000 && stream.next(); ++ops) continue;
            // Streams that are part of it come and go.
            BOOST_TEST(allocations() - before <= ops, schedule_name << ", " << pass);
            longest = std::max(longest, ops);
        }
    }
    BOOST_TEST(longest > 16000);
}

// suits() calls a schedule unsuitable if it cannot be made; so this says when it may refuse. Written by hand, because
// what a registry said of itself would judge nothing; a new schedule is not asked for.
BOOST_AUTO_TEST_CASE(schedules_refuse_ranks_and_heads_that_do_not_divide_and_no_others) {
    const std::set<std::string> of_any_ranks{"all-gather", "bidirectional", "joined-ring", "joined-merge", "merge",
                                             "pass-q",     "pull",          "ring",        "seen"};
    for (const auto& [name, entry] : schedules().entries())
        for (const auto& schedule_name : entry.examples)
            for (int ranks = 1; ranks <= 8; ++ranks) {
                const auto group = Spec::parse(schedule_name).arguments;
                const auto what = fmt::format("{} on {} ranks", schedule_name, ranks);
                if (schedule_name == "seen:3:2" || schedule_name == "seen:1:2:1")
                    BOOST_TEST(suits(schedule_name, ranks) == (ranks % 2 == 0), what);
                else if (of_any_ranks.contains(name))
                    BOOST_TEST(suits(schedule_name, ranks), what);
                if (schedule_name == "ulysses") BOOST_TEST(suits(schedule_name, ranks) == (8 % ranks == 0), what);
                if (name == "double-ring" || schedule_name.starts_with("ulysses:"))
                    BOOST_TEST(suits(schedule_name, ranks) == (ranks % std::stoi(group) == 0), what);
            }
}

BOOST_AUTO_TEST_CASE(every_example_of_every_schedule_is_run_with_or_without_a_latent) {
    for (const auto& [name, entry] : schedules().entries()) {
        BOOST_TEST(!entry.examples.empty(), name << " is registered without an example");
        for (const auto& schedule_name : entry.examples) {
            const auto one_suits = [&](int ranks) {
                return suits(schedule_name, ranks) || ringlab::tests::suits(with_latent, schedule_name, ranks);
            };
            BOOST_TEST(std::ranges::any_of(rank_counts(), one_suits), schedule_name << " suits nothing");
        }
    }
}

BOOST_AUTO_TEST_CASE(streams_of_one_schedule_are_independent_and_repeatable) {
    const auto c = make_case("causal", "zigzag", 4);
    const auto made = schedule_of(c, {.pass = Pass::backward});
    auto a = made->ops(1), b = made->ops(1);
    BOOST_REQUIRE(a.next());
    BOOST_REQUIRE(a.next());
    std::size_t n = 0;
    while (b.next()) ++n;
    BOOST_TEST(n == written(*made)[1].size());
    BOOST_TEST(b.next() == nullptr);
    BOOST_CHECK((a.next()->kind == written(*made)[1][2].kind));
    auto moved = std::move(a);
    BOOST_CHECK((moved.next()->kind == written(*made)[1][3].kind));
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_together_is_explained) {
    const auto c = exact_case("causal", "contiguous", 24, 2);
    const auto error = [&](const std::string& schedule_name) {
        return error_of([&] { schedule_of(c, {.schedule = schedule_name}); });
    };
    BOOST_TEST(error("rings").starts_with("unknown schedule 'rings', did you mean 'ring'? Known: all-gather, "));
    BOOST_TEST(error("ring:2") == "schedule ring takes no arguments, got '2'");
    BOOST_TEST(error("pull:x") == "the number of head groups is 'x'; it must be a whole number of at least 1");
    BOOST_TEST(error("pull:3") == "4 kv heads do not divide into 3 head groups; the groups must divide the kv heads");
    BOOST_TEST(error("all-gather:3") ==
               "4 kv heads do not divide into 3 head groups; the groups must divide the kv heads");
    BOOST_TEST(error("all-gather:5") == "5 head groups of 4 kv heads; at most one group per kv head");
    BOOST_TEST(error("all-gather:0") == "the number of head groups is '0'; it must be a whole number of at least 1");
    auto problem = problem_of(c.mask);
    problem.tokens = 25;
    BOOST_TEST(error_of([&] { make_schedule(problem, c.mask, c.layout, {}); }) ==
               "the problem has 25 tokens, mask causal has 24 and layout contiguous has 24; they must agree");
    problem.tokens = 24;
    problem.kv_heads = 3;
    BOOST_TEST(error_of([&] { make_schedule(problem, c.mask, c.layout, {}); }) ==
               "8 query heads do not share 3 kv heads evenly; query heads must be a multiple of kv heads");
}

namespace {

struct Work {
    Problem problem{.tokens = 48, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
    std::string mask = "causal", layout = "zigzag";
    int ranks = 4;
};

std::unique_ptr<Schedule> schedule_of(const Work& work, Pass pass) {
    const auto mask = make_mask(work.mask, work.problem.tokens);
    return make_schedule(work.problem, mask, make_layout(work.layout, mask, work.ranks), {.pass = pass});
}

/// The error where `change` is made to the backward pass alone.
std::string said_of(const std::function<void(Work&)>& change) {
    Work work;
    const auto forward = schedule_of(work, Pass::forward);
    change(work);
    return error_of([&] { require_same_problem(*forward, *schedule_of(work, Pass::backward)); });
}

}  // namespace

BOOST_AUTO_TEST_CASE(passes_of_one_problem_mask_and_layout_go_together) {
    BOOST_TEST(said_of([](Work&) {}) == "(no error)");
    BOOST_TEST(said_of([](Work& work) { work.problem.scale = work.problem.effective_scale(); }) == "(no error)");
}

BOOST_AUTO_TEST_CASE(passes_that_differ_are_refused_with_what_differs) {
    const std::string problems = "the forward and the backward schedule have different problems; they must be the same";
    BOOST_TEST(said_of([](Work& work) { work.problem.kv_heads = 4; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.problem.rotary.base = 100; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.problem.queries = {{40, 48}}; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.ranks = 2; }) ==
               "the forward schedule has layout zigzag over 4 ranks, the backward schedule zigzag over 2; they must be "
               "the same");
    BOOST_TEST(
        said_of([](Work& work) { work.layout = "striped"; }) ==
        "the forward schedule has layout zigzag over 4 ranks, the backward schedule striped over 4; they must be "
        "the same");
    BOOST_TEST(said_of([](Work& work) { work.mask = "full"; }) ==
               "the forward schedule has mask causal, the backward schedule full; they must be the same");
}

BOOST_AUTO_TEST_SUITE_END()
