// What the prompt's help(x) says: the type annotations of the Lua module, by name and for people.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace mw {

class HelpText {
 public:
  // `types`: as `lua-types` prints them, so that nothing is said here that is not said there.
  explicit HelpText(const std::string& types);

  // The text of a function ("mw.train", "train"), a plugin ("tp"), what a constructor makes
  // ("llama"), a key of any table ("steps", "llama.layers", "pp.schedule"), or what a verb returns
  // ("train result"); an empty name stands for all that there is. Throws Error (script,
  // help.unknown) with the nearest name.
  std::string of(const std::string& name) const;

 private:
  struct Field {
    std::string name, type, about;
    bool optional = false;
  };
  struct Class {
    std::string about, base;
    std::vector<Field> fields;
  };
  struct Function {
    std::string about, signature, returns;
    std::vector<Field> parameters;
  };

  void read(const std::vector<std::string>& comments, const std::string& code);
  const Class* class_of(const std::string& type) const;
  std::string function_text(const Function& function) const;
  std::string class_text(const std::string& name, const Class& described) const;
  std::string keys_called(const std::string& name) const;
  std::string overview() const;
  std::vector<std::string> names() const;

  std::map<std::string, Class> classes_;       // without "meshwright."
  std::map<std::string, Function> functions_;  // without "mw."
};

}  // namespace mw
