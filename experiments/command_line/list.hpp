#pragma once

namespace ringlab::experiments {

/// Prints what --list shows: all names that options take, each with what it stands for.
void print_list();

}  // namespace ringlab::experiments
