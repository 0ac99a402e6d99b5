#include "layouts/operations/pools.hpp"
#include "layouts/schedules/schedule.hpp"

#include <boost/test/unit_test.hpp>

using namespace ringlab::layouts;

BOOST_AUTO_TEST_SUITE(pools)

// 3 query heads for each of 2 kv heads, dims 5 and 7, bf16: numbers of one token and head, by hand.
BOOST_AUTO_TEST_CASE(a_token_has_the_numbers_and_bytes_of_the_tensors_in_the_table) {
    Problem problem;
    problem.tokens = 4;
    problem.query_heads = 6;
    problem.kv_heads = 2;
    problem.head_dim = 5;
    problem.value_dim = 7;
    problem.dtype = DType::bf16;
    const auto schedule =
        make_schedule(problem, make_mask("full", 4), make_layout("contiguous", 4, 1), {.schedule = "ring"});
    struct Expected {
        Pool pool;
        int heads;
        std::int64_t numbers, bytes;  // bytes in slot 0: bf16 has 2, sums and statistics have 4
    };
    for (const auto& [pool, heads, numbers, bytes] : {Expected{Pool::kv, 2, 12, 24},
                                                      {Pool::dkv, 2, 12, 48},
                                                      {Pool::q, 6, 5, 10},
                                                      {Pool::state, 6, 9, 36},
                                                      {Pool::output, 6, 8, 18},
                                                      {Pool::dout, 6, 9, 22},
                                                      {Pool::dq, 6, 5, 20}}) {
        BOOST_TEST_CONTEXT(to_string(pool)) {
            BOOST_TEST(heads_of(problem, pool) == heads);
            BOOST_TEST(width(problem, pool) == numbers);
            BOOST_TEST(schedule->token_bytes(pool, 0) == bytes);
        }
    }
}

BOOST_AUTO_TEST_CASE(inputs_sums_and_rows_are_those_of_attention) {
    for (const auto& pool : pool_table) {
        BOOST_TEST_CONTEXT(pool.name) {
            const auto which = pool.pool;
            BOOST_TEST(is_input(which) ==
                       (which == Pool::kv || which == Pool::q || which == Pool::dout || which == Pool::latent));
            BOOST_TEST(pool.sum ==
                       (which == Pool::state || which == Pool::dq || which == Pool::dkv || which == Pool::dlatent));
            BOOST_TEST(!of_rows(which) ==
                       (which == Pool::kv || which == Pool::dkv || which == Pool::latent || which == Pool::dlatent));
            BOOST_TEST(pool.tensors().size() >= 1u);
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()
