# What a program outside this tree needs to make layouts and schedules and to predict them: `cmake --install BUILD`, then
# find_package(ringlab) and link ringlab::sim or ringlab::layouts. tests/package builds such a program.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set_target_properties(ringlab_layouts PROPERTIES EXPORT_NAME layouts)
set_target_properties(ringlab_sim PROPERTIES EXPORT_NAME sim)
install(TARGETS ringlab_options ringlab_layouts ringlab_layouts_archive ringlab_sim EXPORT ringlab
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder layouts sim)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ringlab FILES_MATCHING PATTERN *.hpp)
endforeach()
install(DIRECTORY experiments/machines DESTINATION ${CMAKE_INSTALL_DATADIR}/ringlab)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ringlab)
install(EXPORT ringlab NAMESPACE ringlab:: FILE ringlab-targets.cmake DESTINATION ${package_folder})
configure_package_config_file(cmake/ringlab-config.cmake.in ${PROJECT_BINARY_DIR}/ringlab-config.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ringlab-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ringlab-config.cmake ${PROJECT_BINARY_DIR}/ringlab-config-version.cmake
  DESTINATION ${package_folder})
