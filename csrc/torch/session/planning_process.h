// A process that plans a step while the program goes on: a question goes in, and some time later an answer
// comes out.
//
// It is a fresh interpreter without torch, so it shares nothing with this process: neither the arena, nor
// locks, nor the state of an accelerator. It has a process group of its own, and all of that is ended at
// once. A child that this process forks leaves it alone.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace remint {

class PlanningProcess {
 public:
  // `command` reads the question from its standard input and writes the answer to its standard output.
  explicit PlanningProcess(std::vector<std::string> command) : command_(std::move(command)) {}
  ~PlanningProcess() { end(); }
  PlanningProcess(const PlanningProcess&) = delete;
  PlanningProcess& operator=(const PlanningProcess&) = delete;

  bool running() const { return pid_ > 0; }
  // False if it cannot be started.
  bool start(const std::string& question);
  // Nothing while it runs, or if none was started. Empty: there is no answer.
  std::optional<std::string> answer();
  void end();

 private:
  void close_files();

  const std::vector<std::string> command_;
  pid_t pid_ = 0;
  pid_t owner_ = 0;  // the process that started it
  int question_ = -1;
  int answer_ = -1;
};

}  // namespace remint
