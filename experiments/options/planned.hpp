#pragma once

#include "layouts/plan/plan.hpp"
#include "layouts/problem/problem.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// Whether a layout is made for prices: "planned", or "planned:MACHINE" with the name or path of a machine file.
bool is_planned(const std::string& layout);

/// The prices that such a layout is made for under a schedule: those of its machine, or the default ones. Throws Error
/// if there is no such machine.
layouts::PlanPrices prices_of(const std::string& layout, const std::string& schedule, const layouts::Problem& problem,
                              int ranks, layouts::DType gradient_dtype);

/// The layout that a user typed, of any kind, for a schedule.
layouts::Layout laid_out(const std::string& layout, const std::string& schedule, const layouts::Mask& mask, int ranks,
                         const layouts::Problem& problem, layouts::DType gradient_dtype);

/// The layouts, with "planned" replaced by one for each of the machines, if there are any.
std::vector<std::string> for_machines(const std::vector<std::string>& layouts,
                                      const std::vector<std::string>& machines);

}  // namespace ringlab::experiments
