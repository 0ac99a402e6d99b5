#pragma once

#include "experiments/files/written_file.hpp"
#include "experiments/record/provenance.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// What the attribute `description` of every file of saved tensors says.
inline const std::string tensors_file_description =
    "inputs and outputs of one attention; see experiments/check_tensors.py";

/// The name of a run as a file name without ending: characters that a file name cannot have are replaced by '_'; a name
/// that is too long is cut, and a digest keeps it unique.
std::string file_name_of(const std::string& run);

/// Path of the file of a run in a folder.
std::filesystem::path tensors_path(const std::filesystem::path& folder, const std::string& run);

/// What a file of saved tensors says of its run beside tensors and mask.
struct TensorNotes {
    std::string input, mask;                     ///< as the user typed them
    std::int64_t tokens = 0;                     ///< before padding; 0: there is none
    std::vector<std::int64_t> document_lengths;  ///< of the input, over `tokens`
};

/// Writes what went into a run and what came out to a file, whose folder is made if need be, for anyone to check with
/// other software: experiments/check_tensors.py needs NumPy and h5py alone.
///
/// Datasets: q, k, v, do in the dtype of the problem (bf16 as uint16 bit patterns), o, lse, dq, dk, dv as computed, in
/// fp64; row_begin, row_end, row_sink and key_valid: row i sees keys j with key_valid[j] and (row_begin[i] <= j <
/// row_end[i] or j < row_sink[i]); where joined masks leave rows more than that, also row_earlier_begin and
/// row_earlier_end: or row_earlier_begin[i, n] <= j < row_earlier_end[i, n] for any n. Attributes: scale, soft_cap,
/// dtype, arithmetic (what the outputs were computed in), mask (lengths written out, over the first `tokens` tokens;
/// the rest is padding), mask_as_typed, input, tokens, run; if q and k are rotated before they are attended to,
/// rotary_frequency, rotary_first_dim, rotary_second_dim and rotary_position, with the attribute rotary_amplitude; with
/// the attribute latent, RANK+SHARED, k and v are a latent and its matrices (layouts::Problem), and dk and dv their
/// gradients; sinks (how many learned sink logits there are) and, if some, the datasets sinks and dsinks; dropout (a
/// probability) and, unless that is 0, dropout_seed and dropout_below (see layouts/problem/dropout.hpp); if the input
/// has documents, document_lengths, padding as the last one; the group /provenance as in a record. q, k, v and do make
/// the file fit for --input, too.
///
/// Throws Error if shapes do not fit or the file cannot be written.
void save_tensors(WrittenFile file, const std::string& run, const layouts::Problem& problem, const layouts::Mask& mask,
                  const reference::Inputs& inputs, const reference::Outputs& outputs, layouts::DType arithmetic,
                  const Provenance& provenance, const TensorNotes& notes = {});

}  // namespace ringlab::experiments
