#include "sim/machine/terms.hpp"

#include "layouts/basics/require.hpp"

#include <vector>

namespace ringlab::sim {
namespace {

/// Calls change(owner) for every part of the machine of this type.
template <class Owner, class Change>
void for_each_owner(Machine& machine, Change change) {
    if constexpr (std::is_same_v<Owner, Machine>) {
        change(machine);
    } else if constexpr (std::is_same_v<Owner, LinkCost>) {
        change(machine.inside_host);
        change(machine.between_hosts);
    } else {
        change(machine.forward);
        change(machine.backward);
        for (auto& kernel : machine.kernels) {
            change(kernel.forward);
            change(kernel.backward);
        }
    }
}

template <class TermType, class Owner>
constexpr bool removes = requires(Owner& owner) {
    TermType::remove(owner);
};

template <class TermType>
void remove(Machine& machine) {
    if constexpr (removes<TermType, Machine>)
        TermType::remove(machine);
    else if constexpr (removes<TermType, AttentionCost>)
        for_each_owner<AttentionCost>(machine, TermType::remove);
    else if constexpr (removes<TermType, LinkCost>)
        for_each_owner<LinkCost>(machine, TermType::remove);
    else
        [&]<class Owner>(const Price<Owner>&) {
            for_each_owner<Owner>(machine, [](Owner& owner) {
                for (const auto& price : TermType::prices) owner.*price.value = Owner{}.*price.value;
            });
        }(TermType::prices[0]);
}

}  // namespace

std::span<const Term> terms_to_remove() {
    static const auto all = [] {
        std::vector<Term> found;
        for_each_term([&](auto term) { found.push_back({term.name, term.effect, remove<decltype(term)>}); });
        return found;
    }();
    return all;
}

const Term& find_term(const std::string& name) {
    std::string known;
    for (const auto& term : terms_to_remove()) {
        if (term.name == name) return term;
        known += std::string(known.empty() ? "" : ", ") + term.name;
    }
    fail("unknown term of the cost model '{}'; known: {}", name, known);
}

}  // namespace ringlab::sim
