#pragma once

#include "layouts/program/program.hpp"
#include "sim/play/simulate.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::sim {

/// What the metadata of every execution trace of Ringlab holds, by which such files are known again.
inline constexpr std::string_view chakra_generator = "Ringlab execution trace";

/// Execution traces of a pass in the schema of mlcommons/chakra (et_def.proto), one for each rank. ASTRA-sim and others
/// play them with network models of their own.
///
/// A trace is a stream of messages, each behind its length: GlobalMetadata, then a Node for
///   - each operation of the compute lane: COMP_NODE, with its FLOP (attends) as num_ops and the bytes that it reads or
///     writes as tensor_size;
///   - each message: COMM_SEND_NODE and COMM_RECV_NODE with bytes (comm_size), GPUs (comm_src, comm_dst) and a tag that
///     no other message between the same two GPUs has. A fetch is a receive, which its owner serves by a send;
///   - what the GPU does before the first and behind the last operation of the pass, if that takes time;
///   - each moment at which the host issues operations: COMP_NODE with is_cpu_op.
///
/// All dependencies are data_deps, because ASTRA-sim's feeder waits for no others: what the schedule says
/// (Op::after()), the operation before on the same lane, and the host's issue. Ids count the sends first: of nodes that
/// are ready ASTRA-sim takes the one with the lowest id.
///
/// Durations are those of a simulation with free links, because what links cost is what the reader of a trace computes.
/// duration_micros are whole microseconds. They are rounded such that those of a rank's GPU, or of its host, add up to
/// within one microsecond. The attribute duration_picoseconds is exact.
class ChakraTraces {
public:
    /// Simulates the schedule with `options`, but links that cost nothing. `name` stands in the metadata. Schedule and
    /// machine must outlive the object. Throws Error as layouts::resolve() and simulate() do.
    ChakraTraces(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                 std::string name);

    /// Number of ranks of all rings that options.replicas asks for.
    int ranks() const { return prediction_.timeline.ranks; }

    /// The GPU of a rank, as options.placement says: the number of the rank's trace, and its name in others' messages.
    int gpu(int rank) const { return placement_.empty() ? rank : placement_[static_cast<std::size_t>(rank)]; }

    /// The bytes of a rank's trace.
    std::string of_rank(int rank) const;

    /// The simulation with free links whose durations the traces have.
    const Prediction& prediction() const { return prediction_; }

private:
    const layouts::Schedule& schedule_;
    std::string name_;
    std::vector<int> placement_;
    layouts::Program program_;
    Prediction prediction_;
    std::vector<std::size_t> first_span_;           // by rank
    std::vector<std::vector<std::uint64_t>> tags_;  // by rank of the ring and instruction; 0 if it is no message
    std::vector<Picoseconds> begins_of_pass_, ends_of_pass_;  // by rank
};

}  // namespace ringlab::sim
