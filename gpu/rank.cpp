#include "gpu/rank.hpp"

#include "gpu/elementwise.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>

namespace ringlab::gpu {
namespace {

using layouts::bytes_of;
using layouts::HeadRange;
using layouts::OpKind;
using layouts::Pass;
using layouts::Payload;

constexpr std::uint8_t nan_byte = 0xff;  // a float, bf16 or fp16 of such bytes is a NaN

/// An instruction writes at most this many tensors that Rank::check() looks at.
constexpr std::size_t checked_tensors = 3;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

std::int64_t count(const Extent& extent) { return extent.batch * extent.tokens * extent.heads * extent.dim; }

/// The rows at `positions` of a global tensor, batch by batch.
std::vector<std::uint16_t> scatter(const HostTensor<std::uint16_t>& global, std::span<const std::int64_t> positions) {
    const auto row = size(global.shape[2] * global.shape[3]);
    std::vector<std::uint16_t> local(size(global.shape[0]) * positions.size() * row);
    auto* to = local.data();
    for (std::int64_t b = 0; b < global.shape[0]; ++b)
        for (const auto position : positions) {
            std::memcpy(to, global.values.data() + global.row(b, position), row * sizeof(std::uint16_t));
            to += row;
        }
    return local;
}

/// One head of a (batch, tokens, heads, dim) tensor, dense.
void copy_head(std::span<const std::uint16_t> from, std::int64_t heads, std::int64_t dim, std::int64_t head,
               std::uint16_t* to) {
    const auto rows = from.size() / size(heads * dim);
    for (std::size_t row = 0; row < rows; ++row)
        std::memcpy(to + row * size(dim), from.data() + (row * size(heads) + size(head)) * size(dim),
                    size(dim) * sizeof(std::uint16_t));
}

std::vector<float> download_numbers(const void* device, std::size_t elements, DType dtype) {
    std::vector<float> numbers(elements);
    if (elements == 0) return numbers;
    if (dtype == DType::fp32) {
        RINGLAB_CUDA(cudaMemcpy(numbers.data(), device, elements * sizeof(float), cudaMemcpyDeviceToHost));
        return numbers;
    }
    std::vector<std::uint16_t> bits(elements);
    RINGLAB_CUDA(cudaMemcpy(bits.data(), device, elements * sizeof(std::uint16_t), cudaMemcpyDeviceToHost));
    from_bits(bits, dtype, numbers);
    return numbers;
}

void require_supported(const layouts::Schedule& schedule) {
    const auto& p = schedule.problem();
    require(bytes_of(p.dtype) == 2, "the CUDA backend computes bf16 and fp16 problems, not {}", to_string(p.dtype));
    const auto gradients = schedule.options().gradient_dtype;
    if (schedule.options().pass == Pass::backward)
        require(gradients == DType::fp32 || gradients == p.dtype,
                "with a {} problem dK and dV travel as fp32 or {}, not as {}", to_string(p.dtype), to_string(p.dtype),
                to_string(gradients));
}

}  // namespace

Rank::Rank(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank,
           const std::vector<const Program*>& programs, Fabric& fabric, const RankOptions& options)
    : forward_(forward),
      backward_(backward),
      problem_(forward.problem()),
      rank_(rank),
      options_(options),
      tokens_(forward.layout().shard_tokens(rank)) {
    require_supported(forward);
    const auto& p = problem_;
    q_ = make_tensor(p.query_heads, p.head_dim, p.dtype, memory_.inputs);

    const bool partials = forward.options().accumulation == layouts::Accumulation::partials;
    const bool rounds_running = partials && options.round_running_output;
    const bool rounds_output = options.round_results && !rounds_running;
    if (backward && rounds_output) {
        const auto elements = p.batch * tokens_ * p.query_heads * std::max(p.head_dim, p.value_dim);
        output_or_dq_ = DeviceBuffer(size(elements) * sizeof(float));
        memory_.results += static_cast<std::int64_t>(output_or_dq_.bytes());
        o_ = place_tensor(p.query_heads, p.value_dim, DType::fp32, output_or_dq_.data());
        dq_ = place_tensor(p.query_heads, p.head_dim, DType::fp32, output_or_dq_.data());
    } else {
        o_ = make_tensor(p.query_heads, p.value_dim, rounds_running ? p.dtype : DType::fp32, memory_.results);
        if (backward) dq_ = make_tensor(p.query_heads, p.head_dim, DType::fp32, memory_.results);
    }
    lse_ = make_rows(memory_.results);
    if (rounds_output) o_rounded_ = make_tensor(p.query_heads, p.value_dim, p.dtype, memory_.results);
    if (partials) {
        o_partial_ = make_tensor(p.query_heads, p.value_dim, p.dtype, memory_.work);
        lse_partial_ = make_rows(memory_.work);
    } else {
        m_ = make_rows(memory_.work);
        l_ = make_rows(memory_.work);
    }

    const SlotMap kv_map(forward, rank, Payload::kv, p.dtype, forward.slots());
    kv_bytes_ = kv_map.bytes();
    kv_scratch_ = kv_map.scratch_begin();
    memory_.inputs += static_cast<std::int64_t>(kv_map.scratch_begin());
    auto kv_scratch = kv_map.scratch_bytes();
    if (backward) {
        own_gradient_dtype_ = programs.at(1)->own_gradient_dtype;
        const SlotMap backward_kv_map(*backward, rank, Payload::kv, p.dtype, backward->slots());
        kv_bytes_ = std::max(kv_bytes_, backward_kv_map.bytes());
        kv_scratch = std::max(kv_scratch, backward_kv_map.scratch_bytes());
        make_gradients(*backward, fabric);
    }
    memory_.slots += static_cast<std::int64_t>(kv_scratch);
    kv_ = fabric.allocate(kv_bytes_);

    row_bounds_ = std::make_shared<RowBounds>(forward.mask(), forward.layout().shard(rank));
    for (const auto* program : programs) {
        join_attends(*program);
        build_work_lists(*program);
    }
    if (options.check_finite) {
        std::size_t instructions = 0;
        for (const auto* program : programs) instructions = std::max(instructions, program->code.size());
        finite_flags_ = DeviceBuffer(instructions * checked_tensors * sizeof(std::uint32_t));
    }
}

void Rank::make_gradients(const layouts::Schedule& backward, Fabric& fabric) {
    require_supported(backward);
    const auto& p = problem_;
    dout_ = make_tensor(p.query_heads, p.value_dim, p.dtype, memory_.inputs);
    statistics_memory_ = DeviceBuffer(size(2 * p.batch * p.query_heads * tokens_) * sizeof(float));
    statistics_ = {statistics_memory_.as<float>(), statistics_strides(p.query_heads, tokens_)};
    memory_.work += static_cast<std::int64_t>(statistics_memory_.bytes());

    const SlotMap gradient_map(backward, rank_, Payload::dkv, own_gradient_dtype_, backward.slots());
    gradient_bytes_ = gradient_map.bytes();
    gradient_scratch_ = gradient_map.scratch_begin();
    memory_.results += static_cast<std::int64_t>(gradient_map.scratch_begin());
    memory_.slots += static_cast<std::int64_t>(gradient_map.scratch_bytes());
    gradients_ = fabric.allocate(gradient_bytes_);
    if (options_.round_results) place_rounded_gradients();
}

/// In the scratch slots where there is room: they are written when nothing needs those any more.
void Rank::place_rounded_gradients() {
    const auto& p = problem_;
    auto begin = gradient_scratch_;
    const auto place = [&](std::int64_t heads, std::int64_t dim) {
        constexpr std::size_t alignment = 256;  // as slots
        const auto bytes = size(p.batch * tokens_ * heads * dim * bytes_of(p.dtype));
        if (begin + bytes > gradient_bytes_) return make_tensor(heads, dim, p.dtype, memory_.results);
        auto tensor = place_tensor(heads, dim, p.dtype, static_cast<char*>(gradients_.get()) + begin);
        begin += (bytes + alignment - 1) / alignment * alignment;
        return tensor;
    };
    dq_rounded_ = place(p.query_heads, p.head_dim);
    dk_rounded_ = place(p.kv_heads, p.head_dim);
    dv_rounded_ = place(p.kv_heads, p.value_dim);
}

const layouts::Schedule& Rank::schedule_of(Pass pass) const { return pass == Pass::forward ? forward_ : *backward_; }

Rank::Tensor Rank::make_tensor(std::int64_t heads, std::int64_t dim, DType dtype, std::int64_t& account) const {
    DeviceBuffer buffer(size(problem_.batch * tokens_ * heads * dim * bytes_of(dtype)));
    account += static_cast<std::int64_t>(buffer.bytes());
    auto tensor = place_tensor(heads, dim, dtype, buffer.data());
    tensor.buffer = std::move(buffer);
    return tensor;
}

Rank::Tensor Rank::place_tensor(std::int64_t heads, std::int64_t dim, DType dtype, void* memory) const {
    return {{}, {problem_.batch, tokens_, heads, dim}, {memory, dtype, dense_strides(tokens_, heads, dim)}};
}

std::size_t Rank::bytes(const Tensor& tensor) { return size(count(tensor.extent) * bytes_of(tensor.view.dtype)); }

void Rank::fill(const Tensor& tensor, std::uint8_t byte, cudaStream_t stream) {
    if (tensor.view.data) RINGLAB_CUDA(cudaMemsetAsync(tensor.view.data, byte, bytes(tensor), stream));
}

Rank::Rows Rank::make_rows(std::int64_t& account) const {
    Rows rows;
    const auto heads = problem_.query_heads;
    rows.buffer = DeviceBuffer(size(problem_.batch * tokens_ * heads) * sizeof(float));
    // (batch, heads, tokens): a tile's rows lie together.
    rows.view = {rows.buffer.as<float>(), {heads * tokens_, 1, tokens_}};
    account += static_cast<std::int64_t>(rows.buffer.bytes());
    return rows;
}

std::size_t JoinedLaunch::place_of(std::size_t attend) const {
    return static_cast<std::size_t>(std::lower_bound(attends.begin(), attends.end(), attend) - attends.begin());
}

const Rank::PassLaunches& Rank::launches_of(const Program& program) const {
    return launches_[static_cast<std::size_t>(program.pass)];
}

const JoinedLaunch* Rank::launch(const Program& program, std::size_t index) const {
    const auto& launches = launches_of(program);
    const auto found = launches.of_attend.find(index);
    return found == launches.of_attend.end() ? nullptr : &launches.launches[found->second];
}

void Rank::join_attends(const Program& program) {
    const bool partials = o_partial_.view.data && program.pass == Pass::forward;
    const auto family = resolve(options_.kernels, program.pass, problem_.head_dim, problem_.value_dim);
    if (family != KernelFamily::hopper || partials) return;
    for (const auto& join : program.joins) {
        const auto heads = [&](std::size_t attend) { return program.code[attend].op.heads.count(); };
        if (!std::all_of(join.begin(), join.end(), [&](auto attend) { return heads(attend) == heads(join.front()); }))
            continue;
        if (options_.joined_waits != JoinedWaits::apart) {
            add_launch(program, join);
            continue;
        }
        std::vector<std::size_t> ahead, rest;
        for (const auto attend : join) (program.code[attend].op.after().empty() ? ahead : rest).push_back(attend);
        for (auto* part : {&ahead, &rest})
            if (!part->empty()) add_launch(program, *part);
    }
}

void Rank::add_launch(const Program& program, std::vector<std::size_t> attends) {
    const auto& schedule = schedule_of(program.pass);
    const auto op_of = [&](std::size_t attend) -> const layouts::Op& { return program.code[attend].op; };
    JoinedLaunch launch;
    launch.heads = op_of(attends.front()).heads;
    launch.first = launch.last = false;
    // One wait for each block is all that the kernel has.
    launch.waits_inside = options_.joined_waits == JoinedWaits::inside;
    for (const auto attend : attends) {
        const auto& op = op_of(attend);
        launch.heads = {std::min(launch.heads.begin, op.heads.begin), std::max(launch.heads.end, op.heads.end)};
        launch.first |= program.code[attend].first;
        launch.last |= program.code[attend].last;
        launch.waits_inside &= op.after_count <= 1;
    }
    launch.runs_ahead =
        launch.waits_inside && std::ranges::all_of(attends, [&](std::size_t attend) {
            return std::ranges::all_of(op_of(attend).after(), [&](layouts::OpIndex before) {
                const auto& transfer = program.code[size(before)];
                return transfer.op.kind == OpKind::fetch && !transfer.two_sided && transfer.op.after_count == 0;
            });
        });
    std::set<std::size_t> awaited;  // by others than the compute lane
    for (const auto& instruction : program.code)
        if (instruction.op.lane != layouts::Lane::compute)
            for (const auto before : instruction.op.after()) awaited.insert(size(before));

    std::vector<JoinedWork::Block> blocks;
    auto& launches = launches_[static_cast<std::size_t>(program.pass)];
    for (const auto attend : attends) {
        const auto& instruction = program.code[attend];
        const auto& op = instruction.op;
        const auto kv = block(kv_.get(), instruction.local, op.owner, problem_.dtype);
        JoinedWork::Block one{.owner = op.owner,
                              .keys = schedule.layout().shard(op.owner),
                              .first_head = op.heads.begin - launch.heads.begin,
                              .k = kv.k,
                              .v = kv.v,
                              .dk = {},
                              .dv = {}};
        one.arrives = launch.waits_inside && op.after_count > 0;
        if (program.pass == Pass::backward) {
            const auto gradient =
                block(gradients_.get(), instruction.gradient, op.owner, gradient_dtype(program, op.gradient_slot));
            one.dk = gradient.k;
            one.dv = gradient.v;
            one.is_awaited = awaited.contains(attend);
        }
        blocks.push_back(one);
        launches.of_attend[attend] = launches.launches.size();
        if (one.arrives) launches.waiting.emplace(size(op.after().front()), attend);
    }
    launch.attends = std::move(attends);
    launch.work = std::make_unique<JoinedWork>(
        schedule.mask(), row_bounds_, blocks,
        JoinedWork::Options{
            {program.pass, problem_.head_dim, problem_.value_dim, options_.deterministic, KernelFamily::hopper},
            shape(launch.heads),
            program.code[launch.attends.front()].op.heads.count(),
            options_.most_wait});
    memory_.work += launch.work->device_bytes();
    launches.launches.push_back(std::move(launch));
}

void Rank::arrived(const Program& program, std::size_t index, cudaStream_t stream) {
    const auto [begin, end] = launches_of(program).waiting.equal_range(index);
    for (auto waiting = begin; waiting != end; ++waiting) {
        const auto& launch = *this->launch(program, waiting->second);
        launch.work->arrived(launch.place_of(waiting->second), stream);
    }
}

bool Rank::wait_until_ended(const Program& program, std::size_t attend, cudaStream_t stream) const {
    const auto* joined = launch(program, attend);
    if (!joined || program.pass == Pass::forward) return false;
    joined->work->wait_until_ended(joined->place_of(attend), stream);
    return true;
}

void Rank::require_arrived(const Program& program) const {
    for (const auto& launch : launches_of(program).launches) {
        const auto late = launch.work->late();
        if (!late) continue;
        const auto attend = launch.attends[*late];
        const auto transfer = program.code[attend].op.after().front();
        fail(
            "a launch of {} attends has waited {} s for what {} brings; its peer is dead or stuck, or the time-out is "
            "too "
            "short",
            launch.attends.size(), std::chrono::duration<double>(options_.most_wait).count(),
            describe(rank_, program.code[size(transfer)], transfer));
    }
}

void Rank::give_up() noexcept {
    for (auto& pass : launches_)
        for (auto& launch : pass.launches) launch.work->give_up();
}

void Rank::build_work_lists(const Program& program) {
    const auto& schedule = schedule_of(program.pass);
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        const auto& instruction = program.code[i];
        if (launch(program, i)) continue;
        const int owner = instruction.op.owner;
        const std::pair key(program.pass, owner);
        if (instruction.op.kind != OpKind::attend || work_lists_.contains(key)) continue;
        auto keys = std::make_shared<KeyPositions>(schedule.mask(), schedule.layout().shard(owner));
        work_lists_[key] =
            std::make_unique<WorkList>(schedule.mask(), row_bounds_, std::move(keys),
                                       WorkList::Options{program.pass, problem_.head_dim, problem_.value_dim,
                                                         options_.deterministic, options_.kernels});
        constexpr std::int64_t item_bytes = 16, entry_bytes = 4, position_bytes = 4;
        const auto& list = *work_lists_[key];
        const auto add_tiles = [&](const TileList& tiles) {
            const auto entries = (tiles.full() + tiles.partial()) * (tiles.device_turns() ? 2 : 1);
            memory_.work += tiles.items() * item_bytes + entries * entry_bytes;
        };
        add_tiles(list.tiles());
        if (list.query_tiles()) add_tiles(*list.query_tiles());
        memory_.work += list.keys().tokens() * position_bytes;
    }
}

const WorkList& Rank::work_list(Pass pass, int owner) const { return *work_lists_.at({pass, owner}); }

void Rank::load(const HostInputs& inputs) {
    const auto& p = problem_;
    const auto positions = forward_.layout().positions(rank_);
    const auto load_rows = [&](const char* name, const HostTensor<std::uint16_t>& from, Tensor& to) {
        const std::array<std::int64_t, 4> expected{p.batch, p.tokens, to.extent.heads, to.extent.dim};
        require(from.shape == expected, "{} has shape ({}), expected ({})", name, fmt::join(from.shape, ", "),
                fmt::join(expected, ", "));
        to.buffer.upload(scatter(from, positions).data());
    };
    load_rows("q", inputs.q, q_);
    if (backward_) load_rows("dout", inputs.dout, dout_);

    const std::array<std::int64_t, 4> k_shape{p.batch, p.tokens, p.kv_heads, p.head_dim};
    const std::array<std::int64_t, 4> v_shape{p.batch, p.tokens, p.kv_heads, p.value_dim};
    require(inputs.k.shape == k_shape && inputs.v.shape == v_shape,
            "k has shape ({}) and v ({}), expected ({}) and ({})", fmt::join(inputs.k.shape, ", "),
            fmt::join(inputs.v.shape, ", "), fmt::join(k_shape, ", "), fmt::join(v_shape, ", "));
    const auto k = scatter(inputs.k, positions), v = scatter(inputs.v, positions);
    const auto k_head = k.size() / size(p.kv_heads), v_head = v.size() / size(p.kv_heads);
    std::vector<std::uint16_t> block(k.size() + v.size());
    for (std::int64_t head = 0; head < p.kv_heads; ++head) {
        auto* to = block.data() + size(head) * (k_head + v_head);
        copy_head(k, p.kv_heads, p.head_dim, head, to);
        copy_head(v, p.kv_heads, p.value_dim, head, to + k_head);
    }
    if (block.empty()) return;
    RINGLAB_CUDA(cudaMemcpy(kv_.get(), block.data(), block.size() * sizeof(std::uint16_t), cudaMemcpyHostToDevice));
    RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
}

void Rank::load_random(int seed) {
    int tensor = 0;
    const auto fill_random = [&](void* data, std::size_t data_bytes) {
        const auto elements = static_cast<std::int64_t>(data_bytes) / bytes_of(problem_.dtype);
        fill_normal(data, problem_.dtype, elements, 16u * static_cast<std::uint64_t>(seed) + size(++tensor), nullptr);
    };
    fill_random(q_.view.data, bytes(q_));
    fill_random(kv_.get(), kv_scratch_);
    fill_random(dout_.view.data, bytes(dout_));
    RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
}

void Rank::poison(const Program& program, cudaStream_t stream) {
    const auto fill_part = [&](void* memory, std::size_t begin, std::size_t end) {
        if (begin < end)
            RINGLAB_CUDA(cudaMemsetAsync(static_cast<char*>(memory) + begin, nan_byte, end - begin, stream));
    };
    fill_part(kv_.get(), kv_scratch_, kv_bytes_);
    if (program.pass == Pass::forward) {
        for (const auto* tensor : {&o_, &o_rounded_, &o_partial_}) fill(*tensor, nan_byte, stream);
        for (auto* rows : {&lse_, &lse_partial_, &m_, &l_}) rows->buffer.fill(nan_byte, stream);
    } else {
        fill_part(gradients_.get(), 0, gradient_bytes_);
        for (const auto* tensor : {&dq_rounded_, &dk_rounded_, &dv_rounded_}) fill(*tensor, nan_byte, stream);
        if (!backward_overwrites_output()) fill(dq_, nan_byte, stream);
        statistics_memory_.fill(nan_byte, stream);
    }
}

void Rank::zero_gradients(const Program& program, cudaStream_t stream) {
    if (options_.check_finite) finite_flags_.fill(0, stream);
    for (auto& launch : launches_[static_cast<std::size_t>(program.pass)].launches) launch.work->begin_pass();
    if (program.pass == Pass::backward && gradient_scratch_ > 0 && program.adds_to_own_gradient)
        RINGLAB_CUDA(cudaMemsetAsync(gradients_.get(), 0, gradient_scratch_, stream));
}

void Rank::start(const Program& program, cudaStream_t stream) {
    if (tokens_ == 0) return;
    if (program.pass == Pass::backward) {
        // dq may lie where o does: then it is set to 0 row by row as o is read, or where rows differ afterwards.
        const bool with_o = !backward_overwrites_output() || problem_.head_dim == problem_.value_dim;
        prepare_backward(
            {o_.extent, o_.view, dout_.view, lse_.view, statistics_, with_o ? dq_.view : View{}, problem_.head_dim},
            stream);
        if (!with_o) fill(dq_, 0, stream);
        return;
    }
    // Heads that this rank never attends with see nothing: o = 0, lse = -inf.
    std::set<int> attended;
    for (const auto& instruction : program.code)
        if (instruction.op.kind == OpKind::attend)
            for (int head = instruction.op.heads.begin; head < instruction.op.heads.end; ++head) attended.insert(head);
    if (attended.size() == size(problem_.kv_heads)) return;
    require(attended.empty(), "rank {}: the schedule attends with {} of {} kv heads; it must be all or none", rank_,
            attended.size(), problem_.kv_heads);
    fill(o_, 0, stream);
    fill(o_rounded_, 0, stream);
    fill_rows(o_.extent, lse_.view, -std::numeric_limits<float>::infinity(), stream);
}

Rank::Block Rank::block(void* memory, std::size_t offset, int owner, DType dtype) const {
    const auto tokens = schedule_of(Pass::forward).layout().shard_tokens(owner);
    const auto k_elements = problem_.batch * tokens * problem_.head_dim;
    const auto head_stride = problem_.batch * tokens * (problem_.head_dim + problem_.value_dim);
    auto* begin = static_cast<char*>(memory) + offset;
    return {
        {begin, dtype, {tokens * problem_.head_dim, problem_.head_dim, head_stride}},
        {begin + k_elements * bytes_of(dtype), dtype, {tokens * problem_.value_dim, problem_.value_dim, head_stride}}};
}

AttendShape Rank::shape(HeadRange heads) const {
    AttendShape shape;
    shape.batch = problem_.batch;
    shape.kv_heads = heads.count();
    shape.query_heads_per_kv_head = problem_.query_heads_per_kv_head();
    shape.head_dim = problem_.head_dim;
    shape.value_dim = problem_.value_dim;
    shape.scale = problem_.effective_scale();
    shape.soft_cap = problem_.soft_cap;
    shape.dtype = problem_.dtype;
    return shape;
}

std::int64_t Rank::first_query_head(HeadRange heads) const { return heads.begin * problem_.query_heads_per_kv_head(); }

DType Rank::gradient_dtype(const Program& program, int slot) const {
    return slot == 0 ? own_gradient_dtype_ : schedule_of(program.pass).options().gradient_dtype;
}

Extent Rank::rows_extent(HeadRange heads) const {
    return {problem_.batch, tokens_, heads.count() * problem_.query_heads_per_kv_head(), problem_.value_dim};
}

void Rank::compute(const Program& program, std::size_t index, cudaStream_t stream) {
    const auto& instruction = program.code[index];
    if (const auto* joined = launch(program, index)) {
        if (joined->attends.front() == index) attend_joined(program, *joined, stream);
        return;
    }
    switch (instruction.op.kind) {
        case OpKind::attend:
            if (program.pass == Pass::forward)
                attend_forward(program, instruction, stream);
            else
                attend_backward(program, instruction, stream);
            break;
        case OpKind::merge: merge(instruction, stream); break;
        case OpKind::add: add(program, instruction, stream); break;
        case OpKind::send:
        case OpKind::receive:
        case OpKind::fetch: fail("rank {}: a {} is on the compute lane", rank_, to_string(instruction.op.kind));
    }
}

ForwardArgs Rank::forward_args(HeadRange heads, bool first, bool last) const {
    const auto head = first_query_head(heads);
    ForwardArgs args;
    args.shape = shape(heads);
    args.q = ConstView(q_.view).from_head(head);
    if (o_partial_.view.data) {
        args.result = {o_partial_.view.from_head(head), {}, lse_partial_.view.from_head(head)};
    } else {
        args.first = first;
        args.last = last;
        // The unnormalised output lives where the result will be: a row's thread block reads the one before it writes
        // the other.
        args.carry = {o_.view.from_head(head), m_.view.from_head(head), l_.view.from_head(head)};
        args.result.o = o_.view.from_head(head);
        if (o_rounded_.view.data) args.result.o_rounded = o_rounded_.view.from_head(head);
        args.result.lse = lse_.view.from_head(head);
    }
    return args;
}

void Rank::attend_forward(const Program& program, const Instruction& instruction, cudaStream_t stream) {
    const auto& op = instruction.op;
    const auto kv = block(kv_.get(), instruction.local, op.owner, problem_.dtype);
    auto args = forward_args(op.heads, instruction.first, instruction.last);
    args.k = kv.k;
    args.v = kv.v;
    gpu::attend_forward(args, work_list(program.pass, op.owner), stream);
}

void Rank::merge(const Instruction& instruction, cudaStream_t stream) {
    const auto head = first_query_head(instruction.op.heads);
    gpu::merge(
        {rows_extent(instruction.op.heads), instruction.first, o_.view.from_head(head), lse_.view.from_head(head),
         ConstView(o_partial_.view).from_head(head), ConstRowView(lse_partial_.view).from_head(head)},
        stream);
}

BackwardArgs Rank::backward_args(HeadRange heads) const {
    const auto head = first_query_head(heads);
    BackwardArgs args;
    args.shape = shape(heads);
    args.q = ConstView(q_.view).from_head(head);
    args.dout = ConstView(dout_.view).from_head(head);
    args.statistics = statistics_.from_head(head);
    args.dq = dq_.view.from_head(head);
    return args;
}

void Rank::attend_backward(const Program& program, const Instruction& instruction, cudaStream_t stream) {
    const auto& op = instruction.op;
    const auto kv = block(kv_.get(), instruction.local, op.owner, problem_.dtype);
    const auto gradient =
        block(gradients_.get(), instruction.gradient, op.owner, gradient_dtype(program, op.gradient_slot));
    auto args = backward_args(op.heads);
    args.k = kv.k;
    args.v = kv.v;
    args.dk = gradient.k;
    args.dv = gradient.v;
    gpu::attend_backward(args, work_list(program.pass, op.owner), stream);
}

void Rank::attend_joined(const Program& program, const JoinedLaunch& launch, cudaStream_t stream) {
    if (program.pass == Pass::forward)
        gpu::attend_forward(forward_args(launch.heads, launch.first, launch.last), *launch.work, stream);
    else
        gpu::attend_backward(backward_args(launch.heads), *launch.work, stream);
}

void Rank::add(const Program& program, const Instruction& instruction, cudaStream_t stream) {
    const auto& op = instruction.op;
    const auto to = block(gradients_.get(), instruction.local, op.owner, gradient_dtype(program, op.slot));
    const auto from =
        block(gradients_.get(), instruction.gradient, op.owner, gradient_dtype(program, op.gradient_slot));
    // K and V parts of a head lie together: both at once, in rows that need not be those of either.
    const auto rows = problem_.batch * forward_.layout().shard_tokens(op.owner);
    const auto row = problem_.head_dim + problem_.value_dim;
    const Extent extent{1, rows, op.heads.count(), row};
    const Strides strides{0, row, rows * row};
    gpu::add(extent, {to.k.data, to.k.dtype, strides}, {from.k.data, from.k.dtype, strides}, stream);
}

void Rank::finish(const Program& program, cudaStream_t stream) {
    if (!options_.round_results || tokens_ == 0) return;
    if (program.pass == Pass::forward) {
        // With fp32 carry the last attend has written both.
        if (o_partial_.view.data && o_rounded_.view.data)
            convert(std::array{Conversion{o_.extent, o_rounded_.view, o_.view}}, stream);
        return;
    }
    const auto own = block(gradients_.get(), 0, rank_, own_gradient_dtype_);
    convert(std::array{Conversion{dq_.extent, dq_rounded_.view, dq_.view},
                       Conversion{dk_rounded_.extent, dk_rounded_.view, own.k},
                       Conversion{dv_rounded_.extent, dv_rounded_.view, own.v}},
            stream);
}

void* Rank::exchange(const Instruction& instruction) const {
    auto* memory = instruction.op.payload == Payload::kv ? kv_.get() : gradients_.get();
    return static_cast<char*>(memory) + instruction.local;
}

namespace {

/// Names of what an instruction writes, in the order in which Rank::check() looks at them.
std::array<const char*, checked_tensors> checked_names(const Program& program, const Instruction& instruction) {
    switch (instruction.op.kind) {
        case OpKind::attend:
            if (program.pass == Pass::forward) return {"o", "lse", nullptr};
            return {"dq", "dk", "dv"};
        case OpKind::merge: return {"o", "lse", nullptr};
        case OpKind::add: return {"dk", "dv", nullptr};
        case OpKind::receive:
        case OpKind::fetch:
            if (instruction.op.payload == Payload::kv) return {"k", "v", nullptr};
            return {"dk", "dv", nullptr};
        case OpKind::send: break;
    }
    return {};
}

}  // namespace

void Rank::check(const Program& program, std::size_t index, cudaStream_t stream) {
    if (!options_.check_finite) return;
    const auto* joined = launch(program, index);
    if (!joined) return check_instruction(program, index, program.code[index].last, stream);
    if (joined->attends.front() != index) return;
    for (const auto attend : joined->attends) check_instruction(program, attend, joined->last, stream);
}

void Rank::check_instruction(const Program& program, std::size_t index, bool last, cudaStream_t stream) {
    const auto& instruction = program.code[index];
    const auto& op = instruction.op;
    auto* flags = finite_flags_.as<std::uint32_t>() + index * checked_tensors;
    const auto head = first_query_head(op.heads);
    const auto check_block = [&](std::size_t offset, DType dtype, std::uint32_t* flag) {
        const auto parts = block(op.payload == Payload::kv && op.kind != OpKind::attend ? kv_.get() : gradients_.get(),
                                 offset, op.owner, dtype);
        const auto tokens = forward_.layout().shard_tokens(op.owner);
        flag_not_finite({problem_.batch, tokens, op.heads.count(), problem_.head_dim}, parts.k, Infinity::none, flag,
                        stream);
        flag_not_finite({problem_.batch, tokens, op.heads.count(), problem_.value_dim}, parts.v, Infinity::none,
                        flag + 1, stream);
    };
    const auto check_rows = [&](const Tensor& o, const Rows& lse) {
        const auto extent = rows_extent(op.heads);
        flag_not_finite(extent, ConstView(o.view).from_head(head), Infinity::none, flags, stream);
        const auto rows = lse.view.from_head(head);
        flag_not_finite({extent.batch, extent.tokens, extent.heads, 1}, {rows.data, DType::fp32, rows.strides},
                        Infinity::negative, flags + 1, stream);
    };
    switch (op.kind) {
        case OpKind::attend:
            if (program.pass == Pass::forward) {
                if (o_partial_.view.data)
                    check_rows(o_partial_, lse_partial_);
                else
                    check_rows(o_, last ? lse_ : l_);  // before the end l stands for lse
            } else {
                auto extent = rows_extent(op.heads);
                extent.dim = problem_.head_dim;
                flag_not_finite(extent, ConstView(dq_.view).from_head(head), Infinity::none, flags, stream);
                check_block(instruction.gradient, gradient_dtype(program, op.gradient_slot), flags + 1);
            }
            break;
        case OpKind::merge: check_rows(o_, lse_); break;
        case OpKind::add: check_block(instruction.local, gradient_dtype(program, op.slot), flags); break;
        case OpKind::receive:
        case OpKind::fetch:
            check_block(instruction.local,
                        op.payload == Payload::kv ? problem_.dtype : gradient_dtype(program, op.slot), flags);
            break;
        case OpKind::send: break;
    }
}

std::optional<NotFinite> Rank::first_not_finite(const Program& program) const {
    if (!options_.check_finite) return {};
    std::vector<std::uint32_t> flags(finite_flags_.bytes() / sizeof(std::uint32_t));
    finite_flags_.download(flags.data());
    std::optional<NotFinite> first;
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        const auto& op = program.code[i].op;
        const auto names = checked_names(program, program.code[i]);
        for (std::size_t t = 0; t < checked_tensors; ++t) {
            if (flags[i * checked_tensors + t] == 0 || (first && first->step <= op.step)) continue;
            first = {op.step,
                     fmt::format("{} is not finite on rank {} at step {} of the {} pass, after the {} of rank "
                                 "{}'s block",
                                 names[t], rank_, op.step, to_string(program.pass), to_string(op.kind), op.owner)};
        }
    }
    return first;
}

RankOutputs Rank::download() const {
    const auto& p = problem_;
    RankOutputs out;
    const auto take = [](const Tensor& tensor) {
        return download_numbers(tensor.view.data, size(count(tensor.extent)), tensor.view.dtype);
    };
    out.o = take(o_rounded_.view.data ? o_rounded_ : o_);

    // (batch, heads, tokens) to (batch, tokens, heads)
    const auto rows = download_numbers(lse_.buffer.data(), size(p.batch * tokens_ * p.query_heads), DType::fp32);
    out.lse.resize(rows.size());
    for (std::int64_t b = 0; b < p.batch; ++b)
        for (std::int64_t h = 0; h < p.query_heads; ++h)
            for (std::int64_t t = 0; t < tokens_; ++t)
                out.lse[size((b * tokens_ + t) * p.query_heads + h)] =
                    rows[size((b * p.query_heads + h) * tokens_ + t)];
    if (!backward_) return out;

    if (options_.round_results) {
        out.dq = take(dq_rounded_);
        out.dk = take(dk_rounded_);
        out.dv = take(dv_rounded_);
        return out;
    }
    out.dq = take(dq_);
    const auto per_head = p.batch * tokens_ * (p.head_dim + p.value_dim);
    const auto block = download_numbers(gradients_.get(), size(p.kv_heads * per_head), own_gradient_dtype_);
    out.dk.resize(size(p.kv_heads * p.batch * tokens_ * p.head_dim));
    out.dv.resize(size(p.kv_heads * p.batch * tokens_ * p.value_dim));
    for (std::int64_t h = 0; h < p.kv_heads; ++h)
        for (std::int64_t row = 0; row < p.batch * tokens_; ++row) {
            const auto* k = block.data() + h * per_head + row * p.head_dim;
            const auto* v = block.data() + h * per_head + p.batch * tokens_ * p.head_dim + row * p.value_dim;
            std::memcpy(out.dk.data() + (row * p.kv_heads + h) * p.head_dim, k, size(p.head_dim) * sizeof(float));
            std::memcpy(out.dv.data() + (row * p.kv_heads + h) * p.value_dim, v, size(p.value_dim) * sizeof(float));
        }
    return out;
}

}  // namespace ringlab::gpu
