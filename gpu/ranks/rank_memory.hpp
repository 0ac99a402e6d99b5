#pragma once

#include "gpu/elements/host_tensors.hpp"
#include "gpu/transports/slot_map.hpp"
#include "gpu/transports/transport.hpp"

#include <memory>

namespace ringlab::gpu {

/// A rank's results in host memory, local tokens in local order; shapes (batch, shard tokens, heads, dim).
struct RankOutputs {
    std::vector<float> o, lse, dq, dk, dv;
    std::vector<float> dsinks;  ///< by query head, of its rows
};

/// One rank's tensors in device memory of its caller: (batch, tokens of the shard, heads, dim), dims of a head
/// adjacent. The kernels of sm_90a want data and strides in multiples of 16 bytes.
struct CallerTensors {
    ConstView q, k, v;               ///< in the problem's dtype
    View o_exact;                    ///< dense, fp32; a forward pass writes it, a backward pass reads it
    RowView lse;                     ///< dense, likewise
    View o;                          ///< dense, in the problem's dtype; a forward pass writes it
    ConstView dout;                  ///< this and what follows: of a backward pass
    View dq, dk, dv;                 ///< in the problem's dtype
    const float* sinks = nullptr;    ///< by query head, where the problem has sinks
    float* sink_gradient = nullptr;  ///< likewise: what the rank's own rows add to it
    void* local = nullptr;           ///< RingPlan::local_bytes() of memory, aligned to 256 bytes, until the pass ends
};

/// The tensors of one rank on its device: exchange and local memory with the views of it that kernels want.
class RankMemory {
public:
    /// `backward` may be null; `exchange` has map.bytes().
    RankMemory(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank, const MapOptions& options,
               SlotMap map, std::shared_ptr<void> exchange)
        : forward_(forward),
          rank_(rank),
          with_gradients_(backward),
          options_(options),
          map_(std::move(map)),
          memory_(std::move(exchange)) {}

    const SlotMap& map() const { return map_; }
    char* data() const { return static_cast<char*>(memory_.get()); }

    std::uint32_t* arrival_flag(layouts::Pass pass, std::size_t receive) const {
        return reinterpret_cast<std::uint32_t*>(data() + SlotMap::arrival_flag(pass, receive));
    }

    /// All of slot 0 of a pool.
    layouts::Place own(layouts::Pool pool) const { return own_place(forward_, rank_, pool); }

    Field field(layouts::Pass pass, const layouts::Place& place, std::size_t field = 0) const {
        return where_lent(lent_, place, field, map_.field(map_.frame(pass, place), place, field));
    }
    Field rounded(const layouts::Place& place, std::size_t field = 0) const {
        return where_lent(lent_rounded_, place, field, map_.field(map_.rounded(place.pool), place, field));
    }
    Field rounded(layouts::Pool pool, std::size_t field = 0) const { return rounded(own(pool), field); }
    char* address(const Field& field) const {
        return field.lent ? field.lent : (field.local ? local_ : data()) + field.begin;
    }
    View view(const Field& field) const { return {address(field), field.dtype, field.strides}; }
    RowView rows(const Field& field) const { return {reinterpret_cast<float*>(address(field)), field.strides}; }

    /// From now on a tensor of slot 0 is this one, of the rank's own tokens, and the same for what it is rounded to.
    /// See MapOptions::lent.
    void lend(layouts::Pool pool, std::size_t field, const View& tensor) {
        lent_[static_cast<std::size_t>(pool)][field] = tensor;
    }
    void lend_rounded(layouts::Pool pool, std::size_t field, const View& tensor) {
        lent_rounded_[static_cast<std::size_t>(pool)][field] = tensor;
    }

    /// From now on local memory is here; it has map().local_bytes().
    void use_local(void* memory) { local_ = static_cast<char*>(memory); }

    /// Sets every byte of a field, in stream order. What is lent must be dense, and the field all of it.
    void fill(const Field& field, std::uint8_t byte, cudaStream_t stream) const;

    /// NaN wherever a pass has to write before it reads.
    void poison(layouts::Pass pass, cudaStream_t stream) const;

    /// Copy inputs to the device and results from it, and wait for it. A latent's matrices and their gradient are in
    /// LatentProducts.
    void load(const HostInputs& inputs) const;
    void load_random(int seed) const;
    RankOutputs download() const;

private:
    /// By pool and field; with null data where nothing is lent.
    using TensorTable = std::array<std::array<View, Frame::most_fields>, layouts::pool_count>;
    static Field where_lent(const TensorTable& tensors, const layouts::Place& place, std::size_t field, Field found);

    bool has_latent() const { return forward_.problem().latent.is_given(); }
    void upload(const char* name, const HostTensor<std::uint16_t>& from, const Field& to, bool of_rows) const;
    std::vector<float> download(const Field& field) const;

    const layouts::Schedule& forward_;
    int rank_;
    bool with_gradients_;
    MapOptions options_;
    SlotMap map_;
    std::shared_ptr<void> memory_;
    char* local_ = nullptr;
    TensorTable lent_, lent_rounded_;
};

/// The tensors of a rank as one pass sees them.
class PassMemory {
public:
    PassMemory(const RankMemory& memory, const layouts::Schedule& pass) : memory_(&memory), pass_(&pass) {}

    layouts::Place place(const layouts::Instruction& instruction, layouts::Pool pool) const {
        return place_of(*pass_, instruction, pool);
    }
    layouts::Place source(const layouts::Instruction& instruction) const { return source_of(*pass_, instruction); }
    layouts::Place own(layouts::Pool pool) const { return memory_->own(pool); }
    char* data() const { return memory_->data(); }

    std::uint32_t* arrival_flag(layouts::Pass pass, std::size_t receive) const {
        return memory_->arrival_flag(pass, receive);
    }

    Field field(const layouts::Place& place, std::size_t field_index = 0) const {
        return memory_->field(pass_->options().pass, place, field_index);
    }
    View view(const layouts::Place& place, std::size_t field_index = 0) const {
        return memory_->view(field(place, field_index));
    }
    RowView rows(const layouts::Place& place, std::size_t field_index) const {
        return memory_->rows(field(place, field_index));
    }

private:
    const RankMemory* memory_;
    const layouts::Schedule* pass_;
};

/// Memory of the fabric for a rank, its first bytes 0. Waits for the device, which must be current.
std::shared_ptr<void> make_exchange_memory(Fabric& fabric, std::size_t bytes, std::size_t zeroed_bytes);

/// The memory that a message reads or writes: pieces of this rank's exchange memory and of its peer's.
std::vector<Piece> message_pieces(const layouts::Schedule& pass, const layouts::Program& program,
                                  const layouts::Instruction& instruction, const SlotMap& own, const SlotMap& peer);

}  // namespace ringlab::gpu
