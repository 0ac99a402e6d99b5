#include "gpu/ranks/finite_check.hpp"

#include "gpu/elements/elementwise.hpp"

#include <array>

namespace ringlab::gpu {

using layouts::Instruction;
using layouts::OpKind;
using layouts::Pass;
using layouts::Pool;

namespace {

/// A field that an instruction writes, and its name.
struct Written {
    const char* name = nullptr;
    Pool pool = Pool::kv;
    std::size_t field = 0;
    Infinity allowed = Infinity::none;
};
constexpr std::size_t most_written = 3;

/// Statistics that travel with dO are not checked, because those of fully masked rows are infinite.
std::array<Written, most_written> written_by(const Instruction& instruction, Pass pass, bool ends) {
    const auto& op = instruction.op;
    const auto of_pool = [](Pool pool) -> std::array<Written, most_written> {
        switch (pool) {
            case Pool::kv: return {{{"k", pool, 0}, {"v", pool, 1}}};
            case Pool::dkv: return {{{"dk", pool, 0}, {"dv", pool, 1}}};
            case Pool::q: return {{{"q", pool, 0}}};
            case Pool::state: return {{{"o", pool, 0}, {"lse", pool, 2}}};  // before the end, l is where lse will be
            case Pool::output: return {{{"o", pool, 0}, {"lse", pool, 1, Infinity::negative}}};
            case Pool::dout: return {{{"dout", pool, 0}}};
            case Pool::dq: return {{{"dq", pool, 0}}};
            case Pool::latent: return {{{"latent", pool, 0}}};
            case Pool::dlatent: return {{{"dlatent", pool, 0}}};
        }
        return {};
    };
    if (op.kind == OpKind::send) return {};
    if (op.kind != OpKind::attend) return of_pool(op.pool);
    if (pass == Pass::forward) return of_pool(ends ? Pool::output : Pool::state);
    return {{{"dq", Pool::dq, 0}, {"dk", Pool::dkv, 0}, {"dv", Pool::dkv, 1}}};
}

}  // namespace

FiniteCheck::FiniteCheck(std::size_t instructions) : flags_(instructions * most_written * sizeof(std::uint32_t)) {}

void FiniteCheck::clear(cudaStream_t stream) { flags_.fill(0, stream); }

void FiniteCheck::look(const PassMemory& memory, const layouts::RankProgram& program, std::size_t index, bool ends,
                       cudaStream_t stream) {
    const auto& instruction = program.code[index];
    auto* flag = flags_.as<std::uint32_t>() + index * most_written;
    for (const auto& [name, pool, number, allowed] : written_by(instruction, program.pass, ends)) {
        if (name) {
            const auto place = memory.place(instruction, pool);
            flag_not_finite(memory.field(place, number).extent, memory.view(place, number), allowed, flag, stream);
        }
        ++flag;
    }
}

std::optional<NotFinite> FiniteCheck::first(const layouts::RankProgram& program) const {
    std::vector<std::uint32_t> flags(flags_.bytes() / sizeof(std::uint32_t));
    flags_.download(flags.data());
    std::optional<NotFinite> first;
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        const auto& op = program.code[i].op;
        const auto written = written_by(program.code[i], program.pass, op.ends);
        for (std::size_t t = 0; t < most_written; ++t) {
            if (flags[i * most_written + t] == 0 || (first && first->step <= op.step)) continue;
            first = {op.step,
                     fmt::format("{} is not finite on rank {} at step {} of the {} pass, after the {} of block {}",
                                 written[t].name, program.rank, op.step, to_string(program.pass), to_string(op.kind),
                                 op.part.block)};
        }
    }
    return first;
}

}  // namespace ringlab::gpu
