#include "reference/attention/samples.hpp"

#include "reference/attention/dense.hpp"
#include "reference/features/sinks.hpp"

#include <algorithm>

namespace ringlab::reference {
namespace {

void require_positions(const char* what, const std::vector<std::int64_t>& positions, std::int64_t tokens) {
    require(!positions.empty(), "no {} are given; name at least one", what);
    for (std::size_t n = 0; n < positions.size(); ++n) {
        require(positions[n] >= 0 && positions[n] < tokens, "{}[{}] is {}; positions lie in [0, {})", what, n,
                positions[n], tokens);
        require(n == 0 || positions[n - 1] < positions[n], "{}[{}] is {} after {}; positions must increase", what, n,
                positions[n], positions[n - 1]);
    }
}

}  // namespace

Tensor take_tokens(const Tensor& tensor, const std::vector<std::int64_t>& positions) {
    const auto& shape = tensor.shape();
    Tensor gathered({shape[0], positions.size(), shape[2], shape[3]});
    const auto token = shape[2] * shape[3];
    auto* to = gathered.data();
    for (std::size_t b = 0; b < shape[0]; ++b)
        for (const auto position : positions)
            to = std::copy_n(tensor.data() + (b * shape[1] + static_cast<std::size_t>(position)) * token, token, to);
    return gathered;
}

Tensor take_rows(const layouts::Problem& problem, const Tensor& tensor, const std::vector<std::int64_t>& positions) {
    return take_tokens(tensor, problem.row_indices_of(positions));
}

SampledRows sampled_rows(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                         std::vector<std::int64_t> rows, const BlockedOptions& options) {
    require_inputs(problem, mask, inputs);
    require_positions("rows", rows, problem.tokens);
    for (const auto row : rows)
        require(problem.rows_below(row + 1) > problem.rows_below(row),
                "position {} has no query row; sample those that have", row);
    SampledRows sample;
    sample.rows = std::move(rows);
    const auto keys = all_positions(problem.tokens);
    const auto q = take_rows(problem, inputs.q, sample.rows), dout = take_rows(problem, inputs.dout, sample.rows);
    const Patch patch{problem, mask, sample.rows, keys, q, inputs.k, inputs.v};
    patch_forward(patch, sample.o, sample.lse, options);
    add_sinks(problem, sample.o, sample.lse);
    patch_backward(patch, dout, sample.lse, row_delta(dout, sample.o), {.dq = &sample.dq}, options);
    return sample;
}

std::vector<std::int64_t> rows_that_see(const layouts::Problem& problem, const layouts::Mask& mask,
                                        const std::vector<std::int64_t>& columns) {
    std::vector<std::int64_t> valid, rows;
    std::copy_if(columns.begin(), columns.end(), std::back_inserter(valid),
                 [&](std::int64_t key) { return mask.key_is_valid(key); });
    if (valid.empty()) return rows;
    for (const auto row : problem.row_positions()) {
        const auto seen = mask.row(row);
        const auto any_in = [&](const layouts::Interval& keys) {
            const auto first = std::lower_bound(valid.begin(), valid.end(), keys.begin);
            return first != valid.end() && *first < keys.end;
        };
        if (any_in({seen.begin, seen.end}) || any_in({0, seen.sink}) || std::ranges::any_of(seen.earlier, any_in))
            rows.push_back(row);
    }
    return rows;
}

RowStatistics row_statistics(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                             const std::vector<std::int64_t>& columns, const BlockedOptions& options) {
    require_inputs(problem, mask, inputs);
    require_positions("columns", columns, problem.tokens);
    RowStatistics statistics;
    statistics.rows = rows_that_see(problem, mask, columns);
    const auto keys = all_positions(problem.tokens);
    const auto q = take_rows(problem, inputs.q, statistics.rows),
               dout = take_rows(problem, inputs.dout, statistics.rows);
    Tensor o;
    patch_forward({problem, mask, statistics.rows, keys, q, inputs.k, inputs.v}, o, statistics.lse, options);
    add_sinks(problem, o, statistics.lse);
    statistics.delta = row_delta(dout, o);
    return statistics;
}

SampledColumns sampled_columns(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                               std::vector<std::int64_t> columns, const RowStatistics& statistics,
                               const BlockedOptions& options) {
    require_inputs(problem, mask, inputs);
    require_positions("columns", columns, problem.tokens);
    const auto& rows = statistics.rows;
    const auto needed = rows_that_see(problem, mask, columns);
    require(std::includes(rows.begin(), rows.end(), needed.begin(), needed.end()),
            "the statistics of {} rows lack some of the {} rows that see the {} columns; all of them are needed",
            rows.size(), needed.size(), columns.size());
    for (const auto* statistic : {&statistics.lse, &statistics.delta})
        require(statistic->shape(0) == inputs.q.shape(0) && statistic->shape(1) == rows.size() &&
                    statistic->shape(2) == inputs.q.shape(2),
                "row statistics have shape ({}, {}, {}); (batch, rows, query_heads) is ({}, {}, {})",
                statistic->shape(0), statistic->shape(1), statistic->shape(2), problem.batch, rows.size(),
                problem.query_heads);

    SampledColumns sample;
    sample.columns = std::move(columns);
    const auto q = take_rows(problem, inputs.q, rows), dout = take_rows(problem, inputs.dout, rows);
    const auto k = take_tokens(inputs.k, sample.columns), v = take_tokens(inputs.v, sample.columns);
    patch_backward({problem, mask, rows, sample.columns, q, k, v}, dout, statistics.lse, statistics.delta,
                   {.dk = &sample.dk, .dv = &sample.dv}, options);
    return sample;
}

}  // namespace ringlab::reference
