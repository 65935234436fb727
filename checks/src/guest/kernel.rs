//! Debian's kernel package.

use super::programs;
use crate::longhaul;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The package that depends on the newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// Reason why there is no kernel to boot, beyond this project's control: checks that need one are
/// skipped.
#[derive(Debug, thiserror::Error)]
pub enum NoKernel {
    /// The package lists lack it: not Debian, or lists never fetched.
    #[error("apt-get knows no package {NEWEST} (Debian has it; apt-get update may help): {0}")]
    Unknown(String),
    /// It could not be downloaded.
    #[error(
        "{package} could not be downloaded (no network, or lists older than the mirror): {reason}"
    )]
    Download {
        /// The package.
        package: String,
        /// apt-get's message.
        reason: String,
    },
    /// Its layout differs from Debian 12's.
    #[error("{package} has no {missing}")]
    Layout {
        /// The package.
        package: String,
        /// The missing file.
        missing: &'static str,
    },
}

/// An unpacked kernel with its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    release: String,
    image: PathBuf,
    /// Base directory of the paths in modules.dep.
    modules_dir: PathBuf,
    modules: BTreeMap<String, Module>,
}

#[derive(Clone, Debug)]
struct Module {
    path: String,
    /// Paths of the modules to load before it.
    needs: Vec<String>,
}

impl Kernel {
    /// The newest kernel in Debian's package lists; without a network, one downloaded earlier.
    ///
    /// # Errors
    /// If none is available.
    ///
    /// # Panics
    /// If a program is missing, with its package, or the target directory cannot be written.
    pub fn newest() -> Result<Self, NoKernel> {
        for (program, package) in [("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("depmod", "kmod")] {
            programs::find(program, package);
        }
        let cache = cache();
        let fetched = named().and_then(|(package, version)| {
            let place = cache.join(format!("{package}_{}", version.replace('/', "_")));
            if !place.is_dir() {
                fetch(&package, &place)?;
            }
            Ok(place)
        });
        let place = match fetched {
            Ok(place) => place,
            Err(reason) => downloaded_before(&cache).ok_or(reason)?,
        };
        Self::unpacked(&place)
    }

    fn unpacked(place: &Path) -> Result<Self, NoKernel> {
        let layout = |missing| NoKernel::Layout { package: place.display().to_string(), missing };
        let modules_root = place.join("lib/modules");
        let release = entries(&modules_root).into_iter().next().ok_or(layout("lib/modules"))?;
        let image = place.join(format!("boot/vmlinuz-{release}"));
        if !image.is_file() {
            return Err(layout("boot/vmlinuz"));
        }
        let modules_dir = modules_root.join(&release);
        let dependencies = fs::read_to_string(modules_dir.join("modules.dep"));
        let modules = parse_dependencies(&dependencies.map_err(|_| layout("modules.dep"))?);
        Ok(Kernel { release, image, modules_dir, modules })
    }

    /// Output of `uname -r` in it.
    pub fn release(&self) -> &str {
        &self.release
    }

    pub(super) fn image(&self) -> &Path {
        &self.image
    }

    /// Files that `modprobe` of each of `names` needs, by path in the guest: the modules, their
    /// dependencies, and an index.
    ///
    /// # Panics
    /// If the kernel has no such module.
    pub(super) fn with_dependencies(&self, names: &[String]) -> BTreeMap<String, Vec<u8>> {
        let mut wanted = BTreeMap::new();
        for name in names {
            let found = self.modules.get(&plain(name));
            let module = found.unwrap_or_else(|| panic!("{} has no module {name}", self.release));
            wanted.insert(&module.path, module);
            // The list of a module is transitive.
            for path in &module.needs {
                wanted.insert(path, &self.modules[&module_name(path)]);
            }
        }
        let mut files = BTreeMap::new();
        let mut index = String::new();
        let inside = |path: &str| format!("lib/modules/{}/{path}", self.release);
        for (path, module) in wanted {
            let file = self.modules_dir.join(path);
            files.insert(
                inside(path),
                fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())),
            );
            index += &format!("{path}: {}\n", module.needs.join(" "));
        }
        files.insert(inside("modules.dep"), index.into_bytes());
        files
    }
}

/// Parses `modules.dep`, by module name.
fn parse_dependencies(text: &str) -> BTreeMap<String, Module> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let modules = lines.map(|(path, needs)| {
        let needs = needs.split_whitespace().map(str::to_owned).collect();
        (module_name(path), Module { path: path.to_owned(), needs })
    });
    modules.collect()
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    plain(file.split('.').next().unwrap_or(file))
}

/// Hyphens and underscores are equivalent in module names.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Directory of the kernels.
fn cache() -> PathBuf {
    let program = longhaul();
    let target = program.ancestors().nth(2).expect("the target directory");
    target.join("guest")
}

/// Package and version of the newest kernel in the package lists.
fn named() -> Result<(String, String), NoKernel> {
    let shown = output(Command::new("apt-cache").args(["show", "--no-all-versions", NEWEST]));
    let text = String::from_utf8_lossy(&shown.stdout);
    let depends = text.lines().find_map(|line| line.strip_prefix("Depends: "));
    depends
        .and_then(exact_dependency)
        .ok_or_else(|| NoKernel::Unknown(String::from_utf8_lossy(&shown.stderr).trim().to_owned()))
}

/// Package and version of `PACKAGE (= VERSION)`, which other packages may follow.
fn exact_dependency(depends: &str) -> Option<(String, String)> {
    let (package, rest) = depends.split_once(" (= ")?;
    let (version, _) = rest.split_once(')')?;
    Some((package.to_owned(), version.to_owned()))
}

/// Downloads `package` and unpacks it as `place`.
fn fetch(package: &str, place: &Path) -> Result<(), NoKernel> {
    let note = format!("fetching {package} for the emulated guest, once");
    // For a terminal only.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{note}\n").as_bytes());
    let part = place.with_extension(format!("part-{}", std::process::id()));
    // Another process with this id may have been killed here.
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part).unwrap_or_else(|e| panic!("{}: {e}", part.display()));
    let done = output(Command::new("apt-get").args(["-q", "download", package]).current_dir(&part));
    if !done.status.success() {
        // Nothing is in it.
        let _ = fs::remove_dir_all(&part);
        let reason = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(NoKernel::Download { package: package.to_owned(), reason });
    }
    let archive =
        entries(&part).into_iter().find(|name| name.ends_with(".deb")).map(|name| part.join(name));
    let archive = archive.unwrap_or_else(|| panic!("apt-get left nothing in {}", part.display()));
    unpack(&archive, &part);
    fs::rename(&part, place).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
    Ok(())
}

fn unpack(archive: &Path, into: &Path) {
    expect_success(Command::new("dpkg-deb").arg("-x").arg(archive).arg(into));
    fs::remove_file(archive).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
    for release in entries(&into.join("lib/modules")) {
        let depmod = programs::find("depmod", "kmod");
        expect_success(Command::new(depmod).arg("-b").arg(into).arg(release));
    }
}

/// The kernel downloaded last.
fn downloaded_before(cache: &Path) -> Option<PathBuf> {
    let kernels =
        entries(cache).into_iter().filter(|name| name.contains('_') && !name.contains(".part-"));
    let age = |path: &PathBuf| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    kernels.map(|name| cache.join(name)).max_by_key(age)
}

fn entries(dir: &Path) -> Vec<String> {
    let found = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn expect_success(command: &mut Command) {
    let done = output(command);
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn output(command: &mut Command) -> Output {
    command.env("LC_ALL", "C").output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_what_the_newest_depends_on() {
        let found = exact_dependency("linux-image-6.1.0-56-amd64 (= 6.1.192-2), other (= 1)");
        assert_eq!(found, Some(("linux-image-6.1.0-56-amd64".to_owned(), "6.1.192-2".to_owned())));
        assert_eq!(exact_dependency("linux-image-6.1.0-56-amd64"), None);
    }

    #[test]
    fn a_module_is_found_by_either_spelling() {
        let modules = parse_dependencies(
            "kernel/net/sch-netem.ko:\nkernel/a/b_c.ko.xz: kernel/net/sch-netem.ko\n",
        );
        assert_eq!(modules["sch_netem"].path, "kernel/net/sch-netem.ko");
        assert_eq!(modules[&plain("b-c")].needs, ["kernel/net/sch-netem.ko"]);
    }
}
