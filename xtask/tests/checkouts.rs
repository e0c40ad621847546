//! A command looks at the checkout that it was started for, wherever its program was built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A checkout of nothing but one broken link, in a file of this name.
fn checkout(name: &str, with_broken_link: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        let parent = path.parent().expect("every file lies in the checkout");
        fs::create_dir_all(parent).expect("the target folder is writable");
        fs::write(path, text).expect("the target folder is writable");
    };
    write("Cargo.toml", "[workspace]\nmembers = [\"xtask\"]\n");
    write("xtask/Cargo.toml", "[package]\nname = \"xtask\"\n");
    write(
        "fuzz/Cargo.toml",
        "[workspace]\n[package]\nname = \"fuzz\"\n",
    );
    write("ARCHITECTURE.md", "# Map\n");
    write(with_broken_link, "[nothing](no-such-file.md)\n");
    folder
}

/// What `xtask tidy` says, started in `folder`, where cargo names `package_folder`.
fn tidy(folder: &Path, package_folder: Option<&Path>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("tidy").current_dir(folder);
    // The folders may lie where the real checkout ignores all files: git must not be asked.
    command.env("GIT_DIR", folder.join("no-git"));
    match package_folder {
        Some(package_folder) => command.env("CARGO_MANIFEST_DIR", package_folder),
        None => command.env_remove("CARGO_MANIFEST_DIR"),
    };
    let output = command
        .output()
        .expect("the program was built for this test");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_checkout_that_cargo_names_counts() {
    let one = checkout("named/one", "one.md");
    let other = checkout("named/other", "other.md");
    for (named, from) in [(&one, &other), (&other, &one), (&one, &one)] {
        let said = tidy(from, Some(&named.join("xtask")));
        let expected = named == &one;
        assert_eq!(said.contains("one.md"), expected, "{said}");
        assert_eq!(said.contains("other.md"), !expected, "{said}");
    }
}

#[test]
fn without_cargo_the_nearest_checkout_above_counts() {
    let one = checkout("nearest/one", "one.md");
    let elsewhere = checkout("nearest/elsewhere", "elsewhere.md");
    for folder in [one.clone(), one.join("xtask"), one.join("fuzz")] {
        let said = tidy(&folder, None);
        assert!(said.contains("one.md"), "{said}");
        // A variable that another package's cargo has left names no checkout.
        let said = tidy(&folder, Some(&elsewhere.join("fuzz")));
        assert!(
            said.contains("one.md") && !said.contains("elsewhere.md"),
            "{said}"
        );
    }
}

#[test]
fn outside_every_checkout_the_command_says_so() {
    let said = tidy(Path::new("/"), None);
    assert!(said.contains("lies in no checkout"), "{said}");
}
