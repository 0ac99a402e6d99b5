#pragma once

namespace ringlab::experiments {

/// Prints what --list shows: all names that options take, each with what it stands for.
void print_list();

/// Prints what --list-machine-keys shows: every key of a machine file, in a table in Markdown for each section.
void print_machine_keys();

}  // namespace ringlab::experiments
