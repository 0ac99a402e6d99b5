#include "experiments/options/case.hpp"

#include "experiments/files/resources.hpp"
#include "experiments/options/values.hpp"
#include "layouts/basics/typed_names.hpp"
#include "sim/cost/layout_prices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace ringlab::experiments {
namespace {

/// A list to loop over, with one empty entry where the experiment has no use for it.
std::vector<std::string> or_none(const std::vector<std::string>& list) {
    return list.empty() ? std::vector<std::string>{""} : list;
}

/// "220,225,512x4".
std::string lengths_text(const std::vector<std::int64_t>& lengths) {
    std::string text;
    for (std::size_t i = 0, end = 0; i < lengths.size(); i = end) {
        while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
        text += fmt::format("{}{}", i == 0 ? "" : ",", lengths[i]);
        if (end - i > 1) text += fmt::format("x{}", end - i);
    }
    return text;
}

/// The input's documents as far as `tokens` go.
std::vector<std::int64_t> cut_documents(const std::string& mask, std::int64_t tokens,
                                        const std::vector<std::int64_t>& document_lengths) {
    require(!document_lengths.empty(), "mask {} asks for the input's documents, but the input has no document_lengths",
            mask);
    std::vector<std::int64_t> lengths;
    std::int64_t left = tokens;
    for (const auto length : document_lengths) {
        if (left == 0) break;
        lengths.push_back(std::min(length, left));
        left -= lengths.back();
    }
    require(left == 0, "the input's documents end after {} tokens, {} are asked for{}", tokens - left, tokens,
            layouts::unit_hint(tokens - left, tokens));
    return lengths;
}

}  // namespace

std::vector<std::int64_t> sequence_lengths(const SweepConfig& sweep, int ranks, std::int64_t input_tokens) {
    constexpr auto most = std::int64_t{1} << 31;
    for (const auto tokens : sweep.tokens) require(tokens <= most, "{} tokens are more than 2^31", tokens);
    if (!sweep.tokens.empty()) return sweep.tokens;
    if (sweep.tokens_per_rank.empty()) return {input_tokens};
    std::vector<std::int64_t> lengths;
    for (const auto tokens : sweep.tokens_per_rank) {
        require(tokens <= most / ranks, "{} tokens on each of {} ranks are more than 2^31 in all", tokens, ranks);
        lengths.push_back(tokens * ranks);
    }
    return lengths;
}

std::string Case::name() const {
    std::string name = fmt::format("{} {} P={} S={} {}", mask, layout, ranks, tokens, schedule);
    if (queries > 0) name += fmt::format(" Q={}", queries);
    if (sequences > 1) name += fmt::format(" N={}", sequences);
    for (const auto& part : {policy, std::filesystem::path(input).filename().string()})
        if (!part.empty()) name += " " + part;
    std::replace(name.begin(), name.end(), '/', '_');  // '/' would make a path in the record
    return name;
}

std::vector<Case> all_cases(const SweepConfig& sweep, const std::vector<std::string>& machines,
                            std::int64_t input_tokens) {
    const auto sizes = std::max({sweep.tokens.size(), sweep.tokens_per_rank.size(), std::size_t{1}});
    std::vector<Case> cases;
    for (const auto& mask : sweep.masks)
        for (std::size_t size = 0; size < sizes; ++size)
            for (const auto sequences : sweep.sequences.empty() ? std::vector{1} : sweep.sequences)
                for (const auto& input : or_none(sweep.inputs))
                    for (const auto ranks : sweep.ranks)
                        for (const auto& schedule : sweep.schedules)
                            for (const auto queries :
                                 sweep.queries.empty() ? std::vector<std::int64_t>{0} : sweep.queries)
                                for (const auto& policy : or_none(sweep.policies))
                                    for (const auto& layout : for_machines(sweep.layouts, machines))
                                        cases.push_back({input, mask, layout, schedule, policy, ranks,
                                                         sequence_lengths(sweep, ranks, input_tokens)[size], queries,
                                                         sweep.pad, sequences});
    std::set<std::string> names;
    for (const auto& one : cases)
        require(names.insert(one.name()).second,
                "the case '{}' occurs twice; give each layout, mask and size once, and input files different names",
                one.name());
    return cases;
}

Policy policy_from(const std::string& name, layouts::DType arithmetic) {
    using layouts::Accumulation;
    using layouts::DType;
    const auto wide = arithmetic == DType::fp64 ? DType::fp64 : DType::fp32;
    if (name.empty() || name == "carry") return {Accumulation::carry, false, wide};
    const auto choice = parse_choice(name, "the policy", {"carry", "gradients", "partials", "running"});
    const auto narrow = arithmetic == DType::fp64 || arithmetic == DType::fp32 ? wide : arithmetic;
    if (choice == 1) return {Accumulation::carry, false, narrow};
    return {Accumulation::partials, choice == 3, narrow};
}

std::string expand_mask(const std::string& mask, std::int64_t tokens,
                        const std::vector<std::int64_t>& document_lengths) {
    std::string expanded;
    for (std::size_t begin = 0; begin <= mask.size();) {
        const auto end = std::min(mask.find('+', begin), mask.size());
        const auto term = mask.substr(begin, end - begin);
        const auto spec = layouts::Spec::parse(term);
        if (!expanded.empty() || begin > 0) expanded += "+";
        if (term == "documents:input")
            expanded += "documents:" + lengths_text(cut_documents(mask, tokens, document_lengths));
        else if (spec.arguments.starts_with("@"))
            expanded += spec.name + ":" + lengths_text(layouts::parse_lengths(spec.arguments, "lengths"));
        else
            expanded += term;
        begin = end + 1;
    }
    return expanded;
}

Plan make_plan(const Case& setup, layouts::Problem problem, const std::vector<std::int64_t>& document_lengths) {
    const auto granularity = layouts::layout_granularity(setup.layout, setup.ranks);
    problem.tokens = setup.pad ? (setup.tokens + granularity - 1) / granularity * granularity : setup.tokens;
    problem.validate();
    const auto mask = layouts::pad(
        layouts::make_mask(expand_mask(setup.mask, setup.tokens, document_lengths), setup.tokens), problem.tokens);
    if (setup.queries > 0) problem.queries = layouts::last_rows(mask, setup.queries);
    const auto policy = policy_from(setup.policy, problem.dtype);
    const auto layout = laid_out(setup.layout, setup.schedule, mask, setup.ranks, problem, policy.gradient_dtype);
    Plan plan{problem, nullptr, nullptr};
    layouts::ScheduleOptions options{setup.schedule, layouts::Pass::forward, policy.accumulation,
                                     policy.gradient_dtype};
    plan.forward = layouts::make_schedule(problem, mask, layout, options);
    options.pass = layouts::Pass::backward;
    plan.backward = layouts::make_schedule(problem, mask, layout, options);
    return plan;
}

bool is_planned(const std::string& layout) { return layouts::Spec::parse(layout).name == "planned"; }

layouts::LayoutPrices prices_of(const std::string& layout, const std::string& schedule, const layouts::Problem& problem,
                                int ranks, layouts::DType gradient_dtype) {
    const auto machine = layouts::Spec::parse(layout).arguments;
    const auto prices = machine.empty()
                            ? layouts::default_layout_prices()
                            : sim::layout_prices(sim::load_machine(find_resource(machine, "machines", ".toml")),
                                                 problem, ranks, gradient_dtype);
    auto travels = layouts::Spec::parse(schedule);
    if (travels.name == layouts::expanded_schedule_name) travels = layouts::Spec::parse(travels.arguments);
    // All other schedules move whole blocks. Some attend to each in a launch of its own, which the price leaves out.
    return travels.name == "seen" ? prices : layouts::for_whole_blocks(prices);
}

layouts::Layout laid_out(const std::string& layout, const std::string& schedule, const layouts::Mask& mask, int ranks,
                         const layouts::Problem& problem, layouts::DType gradient_dtype) {
    layouts::layout_granularity(layout, ranks);  // says what is wrong with the name
    if (!is_planned(layout)) return layouts::make_layout(layout, mask, ranks);
    return layouts::planned_layout(mask, ranks, prices_of(layout, schedule, problem, ranks, gradient_dtype), layout);
}

std::vector<std::string> for_machines(const std::vector<std::string>& layouts,
                                      const std::vector<std::string>& machines) {
    std::vector<std::string> all;
    for (const auto& layout : layouts)
        if (layout == "planned" && !machines.empty())
            for (const auto& machine : machines) all.push_back("planned:" + machine);
        else
            all.push_back(layout);
    return all;
}

}  // namespace ringlab::experiments
