// SPDX-License-Identifier: Apache-2.0
// How many physical cores this process may use: the default size of the thread pool.
#pragma once

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

namespace tfcc::cpu {

/// CPU time that a container grants, in CPUs, or `most` if it grants all.
inline int cpu_quota(int most) {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(in >> quota >> period) || period <= 0) return most;  // "max 100000"
  return std::max(1, static_cast<int>(quota / period + 0.5));
}

/// Physical cores in the affinity mask, at least 1: hyper-threads of one core count once.
inline int physical_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
    std::string siblings;
    if (!(in >> siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  int count = std::max<int>(1, static_cast<int>(cores.size()));
  return std::min(count, cpu_quota(count));
}

}  // namespace tfcc::cpu
