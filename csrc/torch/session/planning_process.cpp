#include "torch/session/planning_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

extern char** environ;

namespace remint {
namespace {

// A file without a name: nothing is left of it, however the processes end.
int open_unnamed() {
  const char* folder = getenv("TMPDIR");
  std::string path = std::string(folder == nullptr || *folder == '\0' ? "/tmp" : folder) + "/remint-XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return -1;
  unlink(path.c_str());
  fcntl(file, F_SETFD, FD_CLOEXEC);
  return file;
}

bool write_all(int file, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(file, text.data() + done, text.size() - done);
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return lseek(file, 0, SEEK_SET) == 0;
}

std::string read_all(int file) {
  std::string text;
  char buffer[1 << 16];
  lseek(file, 0, SEEK_SET);
  for (;;) {
    const ssize_t count = read(file, buffer, sizeof buffer);
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

bool PlanningProcess::start(const std::string& question) {
  end();
  question_ = open_unnamed();
  answer_ = open_unnamed();
  if (command_.empty() || question_ < 0 || answer_ < 0 || !write_all(question_, question)) {
    close_files();
    return false;
  }
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, question_, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, answer_, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_init(&attributes);
  // Ctrl-C in the terminal is meant for the program. The program may ignore signals; this one does not.
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> arguments;
  for (const std::string& argument : command_) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int failure = posix_spawnp(&pid, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (failure != 0) {
    close_files();
    return false;
  }
  pid_ = pid;
  owner_ = getpid();
  return true;
}

std::optional<std::string> PlanningProcess::answer() {
  if (pid_ == 0) return std::nullopt;
  if (getpid() != owner_) {
    end();
    return std::nullopt;
  }
  int status = 0;
  const pid_t ended = waitpid(pid_, &status, WNOHANG);
  if (ended == 0) return std::nullopt;
  // The program may have waited for all its children, this one included: then only the answer tells.
  const bool failed = ended == pid_ && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::string text = failed ? std::string() : read_all(answer_);
  pid_ = 0;
  close_files();
  return text;
}

void PlanningProcess::end() {
  if (pid_ > 0 && getpid() == owner_) {
    int status = 0;
    // Its number is its own as long as nobody has waited for it.
    if (waitpid(pid_, &status, WNOHANG) == 0) {
      kill(-pid_, SIGKILL);
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
    }
  }
  pid_ = 0;
  close_files();
}

void PlanningProcess::close_files() {
  for (int* file : {&question_, &answer_}) {
    if (*file >= 0) close(*file);
    *file = -1;
  }
}

}  // namespace remint
