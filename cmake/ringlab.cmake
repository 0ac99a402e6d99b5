# What every target of Ringlab has in common.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# What was compiled once is not compiled again: in another build folder, after another checkout, in another clone. By
# the headers that the compiler names, so that what is new is preprocessed once and not twice.
find_program(CCACHE ccache)
if(CCACHE)
  foreach(language C CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
        ${CCACHE})
    endif()
  endforeach()
endif()

add_library(ringlab_options INTERFACE)
target_compile_features(ringlab_options INTERFACE cxx_std_20)
target_include_directories(ringlab_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/ringlab>)
# What only this tree wants is no business of those who link an installed library.
add_library(ringlab_own_options INTERFACE)
target_compile_options(ringlab_own_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    -Wno-restrict>)  # gcc 12 warns wrongly inside std::string
if(RINGLAB_NATIVE)
  target_compile_options(ringlab_own_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()
target_link_libraries(ringlab_options INTERFACE $<BUILD_INTERFACE:ringlab_own_options>)
if(RINGLAB_SANITIZE)
  # Four checks of each access and call are left out, which take up to two fifths of the compiler's time: the address
  # sanitizer sees null and what lies outside of objects, x86 takes any alignment, and no cast here leads to a derived
  # class with virtual functions.
  target_compile_options(ringlab_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize=null,alignment,object-size,vptr
      -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(ringlab_options INTERFACE -fsanitize=address,undefined)
endif()

if(RINGLAB_SANITIZE_THREADS)
  target_compile_options(ringlab_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread -fno-omit-frame-pointer>)
  target_link_options(ringlab_options INTERFACE -fsanitize=thread)
endif()

# ringlab_library(NAME [WHOLE_ARCHIVE] SOURCES... LINKS TARGETS...) makes a library with the alias ringlab::NAME.
# WHOLE_ARCHIVE keeps objects that nothing refers to, such as registrations.
function(ringlab_library name)
  cmake_parse_arguments(arg "WHOLE_ARCHIVE" "" "LINKS" ${ARGN})
  if(arg_WHOLE_ARCHIVE)
    set(archive ringlab_${name}_archive)
    add_library(ringlab_${name} INTERFACE)
    target_link_libraries(ringlab_${name} INTERFACE $<LINK_LIBRARY:WHOLE_ARCHIVE,$<TARGET_NAME:${archive}>>)
  else()
    set(archive ringlab_${name})
  endif()
  add_library(${archive} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${archive} PUBLIC ringlab_options ${arg_LINKS})
  add_library(ringlab::${name} ALIAS ringlab_${name})
endfunction()
