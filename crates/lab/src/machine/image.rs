//! Kernel and initramfs of the machine, from Debian's packages.
//!
//! The packages are downloaded by apt, unpacked below the project's cache directory and never
//! installed. Once they are there, no network is needed. The initramfs is put together for each run,
//! because the agent belongs to the program and not to the cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::archive::InitramfsArchive;
use super::modules::{load_order, modules_below};
use host::command;
use host::progress::ProgressReporter;

/// Package that depends on the newest kernel for clouds: small, and with all that QEMU emulates.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Packages beside the kernel: the first program and its tools, the smallest Python, and its
/// libraries.
const PACKAGES: [&str; 6] = [
    "busybox-static",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libc6",
    "zlib1g",
    "libexpat1",
];

/// Directory of Python's modules in the packages.
const PYTHON: &str = "usr/lib/python3.11";

/// Modules for the machine's devices, the client for file shares, and the algorithms that it asks the
/// kernel for.
const MODULES: [&str; 15] = [
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "nls_utf8",
    "sha512_generic",
    "cmac",
    "ecb",
    "ctr",
    "ghash_generic",
    "gcm",
    "ccm",
    "seqiv",
    "aesni_intel",
    "ghash_clmulni_intel",
    "cifs",
];

/// Commands of busybox in the machine's `/bin`.
const COMMANDS: [&str; 28] = [
    "sh",
    "mount",
    "umount",
    "insmod",
    "ip",
    "poweroff",
    "cat",
    "cmp",
    "cp",
    "dd",
    "dmesg",
    "find",
    "free",
    "grep",
    "head",
    "ls",
    "md5sum",
    "mkdir",
    "mv",
    "ping",
    "ps",
    "rm",
    "sha256sum",
    "sleep",
    "stat",
    "sync",
    "tail",
    "touch",
];

/// Libraries of Python; the first directory that has one counts.
const LIBRARIES: [&str; 4] = ["libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1"];
/// See above.
const LIBRARY_DIRECTORIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
/// Path of the programs' interpreter in the machine.
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
/// The same in the packages, where the path above is a link to the host's own interpreter.
const LOADER_FILE: &str = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";

/// Programs of the machine's own.
const INIT: &[u8] = include_bytes!("../../machine/init");
/// See above.
const AGENT: &[u8] = include_bytes!("../../machine/agent.py");

/// File whose presence says that everything was unpacked; its content lists the packages.
const COMPLETE: &str = "complete";

/// Unpacked packages of the machine.
#[derive(Clone, Debug)]
pub struct MachineImage {
    root: PathBuf,
    kernel: PathBuf,
    modules: PathBuf,
}

impl MachineImage {
    /// Finds the unpacked packages in the project's cache directory, or downloads them.
    ///
    /// # Errors
    /// Fails when they are not there and cannot be downloaded; the message says what to do.
    pub fn prepare(cache: &Path, progress: &dyn ProgressReporter) -> Result<Self> {
        ensure!(
            cfg!(target_arch = "x86_64"),
            "the lab's machine is made from Debian's packages for amd64; run this on such a processor"
        );
        let home = cache.join("machine");
        let root = home.join("root");
        if !root.join(COMPLETE).exists() {
            progress.note("downloading the packages of the lab's machine, once");
            download(&home, &root).with_context(|| {
                format!(
                    "getting the packages of the lab's machine, which needs Debian 12's archive once; \
                     to prepare a machine without network, copy {} from another",
                    home.display()
                )
            })?;
        }
        let release = only_entry(&root.join("lib/modules"))?;
        let name = release.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            kernel: root.join(format!("boot/vmlinuz-{name}")),
            modules: release.join("kernel"),
            root,
        })
    }

    /// The kernel.
    pub(super) fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// Writes the initramfs.
    ///
    /// # Errors
    /// Fails when a file is missing in the packages, or the initramfs cannot be written.
    pub(super) fn write_initramfs(&self, path: &Path) -> Result<()> {
        let mut archive = InitramfsArchive::default();
        for directory in [
            "bin", "dev", "lib", "lib64", "machine", "mnt", "modules", "proc", "sys", "tmp", "usr",
            "usr/lib", PYTHON,
        ] {
            archive.directory(directory);
        }
        archive.file("init", INIT);
        archive.file("machine/agent.py", AGENT);
        archive.file("bin/busybox", &self.read("bin/busybox")?);
        for command in COMMANDS {
            archive.link(&format!("bin/{command}"), "busybox");
        }
        archive.file("bin/python3", &self.read("usr/bin/python3.11")?);
        archive.file(LOADER, &self.read(LOADER_FILE)?);
        for library in LIBRARIES {
            let places = LIBRARY_DIRECTORIES.map(|directory| format!("{directory}/{library}"));
            let place = places.iter().find(|place| self.root.join(place).exists());
            let place = place.with_context(|| format!("the packages have no {library}"))?;
            archive.file(&format!("lib/{library}"), &self.read(place)?);
        }
        self.add_python(&mut archive, Path::new(PYTHON))?;
        let modules = modules_below(&self.modules)?;
        let mut order = String::new();
        for name in load_order(&MODULES, &modules)? {
            let content = fs::read(&modules[&name])?;
            archive.file(&format!("modules/{name}.ko"), &content);
            order += &format!("{name}.ko\n");
        }
        archive.file("modules/order", order.as_bytes());
        fs::write(path, archive.finish()).with_context(|| format!("writing {}", path.display()))
    }

    /// Adds Python's modules in a directory and those below it.
    fn add_python(&self, archive: &mut InitramfsArchive, directory: &Path) -> Result<()> {
        let mut entries: Vec<PathBuf> = fs::read_dir(self.root.join(directory))?
            .flatten()
            .map(|entry| directory.join(entry.file_name()))
            .collect();
        entries.sort();
        for path in entries {
            let name = path.display().to_string();
            if self.root.join(&path).is_dir() {
                archive.directory(&name);
                self.add_python(archive, &path)?;
            } else if name.ends_with(".py") {
                archive.file(&name, &self.read(&name)?);
            }
        }
        Ok(())
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let path = self.root.join(path);
        fs::read(&path).with_context(|| format!("reading {}", path.display()))
    }
}

/// Downloads and unpacks all packages. A download that was cut off starts again at the next call.
fn download(home: &Path, root: &Path) -> Result<()> {
    for program in ["apt-get", "dpkg-deb"] {
        ensure!(
            command::find(program).is_some(),
            "the program {program} is missing: this needs Debian"
        );
    }
    let packages = home.join("packages");
    for directory in [&packages, root] {
        // Left from a download that was cut off.
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)?;
    }
    let kernel = newest_kernel()?;
    let names: Vec<&str> = std::iter::once(kernel.as_str()).chain(PACKAGES).collect();
    let mut apt = command::new("apt-get");
    // Outside the user's own directory apt's own user could not write either.
    apt.args(["download", "--quiet", "-o", "APT::Sandbox::User=root"])
        .args(&names)
        .current_dir(&packages);
    command::finish("apt-get", &mut apt, None)?;
    for package in fs::read_dir(&packages)?.flatten() {
        let mut unpack = command::new("dpkg-deb");
        unpack.arg("--extract").arg(package.path()).arg(root);
        command::finish("dpkg-deb", &mut unpack, None)?;
    }
    fs::remove_dir_all(&packages)?;
    fs::write(root.join(COMPLETE), names.join("\n"))?;
    Ok(())
}

/// Name of the package that has the kernel itself.
fn newest_kernel() -> Result<String> {
    let said = command::run("apt-cache", ["depends", KERNEL])?;
    let name = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"));
    match name {
        Some(name) => Ok(name.to_owned()),
        None => bail!("apt knows no kernel for {KERNEL}; run `apt-get update` as root"),
    }
}

/// The only entry of a directory.
fn only_entry(directory: &Path) -> Result<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| format!("listing {}", directory.display()))?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    match &entries[..] {
        [entry] => Ok(entry.clone()),
        _ => bail!(
            "{} has {} kernels in place of one; remove the directory to get it again",
            directory.display(),
            entries.len()
        ),
    }
}
