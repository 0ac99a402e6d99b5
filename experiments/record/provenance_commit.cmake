# Writes OUTPUT, a header with the commit that SOURCE is at, whenever that has changed; run at every build:
# cmake -D SOURCE=... -D OUTPUT=... -P provenance_commit.cmake
set(commit "unknown")
find_program(GIT git)
if(GIT AND EXISTS "${SOURCE}/.git")  # not a checkout above an unpacked archive
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse HEAD
    RESULT_VARIABLE failed OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(commit "${head}")
    execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain --untracked-files=no
      RESULT_VARIABLE failed OUTPUT_VARIABLE changes ERROR_QUIET)
    if(failed OR NOT changes STREQUAL "")
      string(APPEND commit "+dirty")
    endif()
  endif()
endif()
set(text "#pragma once\n\n#define RINGLAB_COMMIT \"${commit}\"\n")
set(before "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" before)
endif()
if(NOT before STREQUAL text)
  file(WRITE "${OUTPUT}" "${text}")
endif()
