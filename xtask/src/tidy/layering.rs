//! Who may depend on whom, read from the crates' Cargo.toml.
//!
//! ```text
//! vocab ◄─ emulate, reduce, tunnel, accelerate ◄─ mapi, measure ◄─ engine ◄─ node ─┐
//!   tcp ◄─ profile
//!   host, capture ◄─ estimate, emulator, tester ◄─ lab ◄─ bench ◄─ trunkline
//!            ▲        ▲      ▲                                  ▲
//!            │     simd      └─ simd, path            hostile (fuzzing only)
//!            └─ testkit (tests only)
//! ```
//!
//! `node` uses `host` as well. `simulation` joins `engine` with `emulate` and `tcp` for `lab`.

use anyhow::{Context, Result};

use super::files::Checkout;

/// Crates without input or output. None of them depends on another, save that all use `vocab`,
/// that `simd` lies below those with a loop to speed up and `path` below those that send on one, and
/// that `engine` joins three. `mapi` is an accelerator with a crate of its own, above `accelerate`, and
/// `simulation` joins all that a site in virtual time has.
const CORES: [&str; 13] = [
    "vocab",
    "simd",
    "path",
    "tcp",
    "emulate",
    "reduce",
    "tunnel",
    "accelerate",
    "mapi",
    "measure",
    "profile",
    "engine",
    "simulation",
];

/// Each crate and the crates of this workspace that it may use outside of tests.
const MAY_USE: [(&str, &[&str]); 25] = [
    ("vocab", &[]),
    ("simd", &[]),
    ("path", &["vocab"]),
    ("tcp", &["vocab"]),
    ("emulate", &["vocab"]),
    ("reduce", &["vocab", "simd"]),
    ("tunnel", &["vocab", "simd", "path"]),
    ("accelerate", &["vocab"]),
    ("mapi", &["vocab", "accelerate"]),
    ("measure", &["vocab", "path"]),
    ("profile", &["vocab", "tcp"]),
    (
        "engine",
        &["vocab", "reduce", "tunnel", "accelerate", "mapi"],
    ),
    ("testkit", &["vocab", "tcp", "emulate"]),
    (
        "simulation",
        &[
            "vocab",
            "tcp",
            "emulate",
            "reduce",
            "tunnel",
            "accelerate",
            "mapi",
            "engine",
            "testkit",
        ],
    ),
    ("host", &["vocab", "emulate", "measure"]),
    ("capture", &["vocab"]),
    (
        "estimate",
        &["vocab", "reduce", "tunnel", "host", "capture"],
    ),
    (
        "node",
        &["vocab", "reduce", "tunnel", "accelerate", "engine", "host"],
    ),
    ("emulator", &["vocab", "emulate", "host", "capture"]),
    ("tester", &["vocab", "measure", "host"]),
    (
        "profiler",
        &["vocab", "profile", "emulate", "host", "capture"],
    ),
    (
        "lab",
        &[
            "vocab",
            "emulate",
            "simulation",
            "host",
            "capture",
            "emulator",
        ],
    ),
    (
        "bench",
        &[
            "vocab",
            "emulate",
            "reduce",
            "tunnel",
            "measure",
            "simulation",
            "host",
            "capture",
            "estimate",
            "emulator",
            "lab",
        ],
    ),
    (
        "hostile",
        &[
            "vocab",
            "emulate",
            "reduce",
            "tunnel",
            "accelerate",
            "mapi",
            "measure",
            "profile",
            "engine",
            "capture",
            "node",
            "emulator",
            "profiler",
            "lab",
        ],
    ),
    (
        "trunkline",
        &[
            "vocab", "tunnel", "measure", "host", "capture", "estimate", "node", "emulator",
            "tester", "profiler", "lab", "bench",
        ],
    ),
];

/// The core whose purpose is unsafe code: instructions that only intrinsics reach.
const WITH_INTRINSICS: &str = "simd";

/// Crates that any crate's tests may use.
const FOR_TESTS: [&str; 2] = ["testkit", "hostile"];

/// Crates from outside that a core would reach the world by.
const INPUT_OUTPUT: [&str; 14] = [
    "async-std",
    "async-trait",
    "fastrand",
    "futures",
    "getrandom",
    "libc",
    "mio",
    "nix",
    "rand",
    "rustix",
    "smol",
    "socket2",
    "tokio",
    "tracing-subscriber",
];

/// A crate uses only what lies below it.
pub(crate) fn crates_depend_one_way(checkout: &Checkout) -> Result<Vec<String>> {
    let crates = checkout.crates();
    let mut complaints = Vec::new();
    for name in &crates {
        let Some((_, allowed)) = MAY_USE.iter().find(|(user, _)| user == name) else {
            complaints.push(format!(
                "crates/{name}: not in MAY_USE of xtask/src/tidy/layering.rs; a new crate needs its place there and a decision note"
            ));
            continue;
        };
        for (section, dependency) in dependencies(checkout, name)? {
            if !crates.contains(&dependency.as_str()) {
                continue;
            }
            let for_tests = section == "dev-dependencies";
            let fine = allowed.contains(&dependency.as_str())
                || (for_tests && is_below_or_for_tests(name, &dependency));
            if !fine {
                complaints.push(format!(
                    "crates/{name}/Cargo.toml: [{section}] {dependency}: dependencies go one way only (ARCHITECTURE.md)"
                ));
            }
        }
    }
    Ok(complaints)
}

/// A core's dependencies cannot open, ask or roll anything.
pub(crate) fn cores_use_no_input_or_output(checkout: &Checkout) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for name in present_cores(checkout) {
        for (section, dependency) in dependencies(checkout, name)? {
            let is_traits_alone = (name, dependency.as_str()) == ("accelerate", "tokio")
                && has_no_features(checkout, name, &dependency)?;
            if section == "dependencies"
                && INPUT_OUTPUT.contains(&dependency.as_str())
                && !is_traits_alone
            {
                complaints.push(format!(
                    "crates/{name}/Cargo.toml: {dependency} does input, output or chance; a core is handed these by a shell"
                ));
            }
        }
    }
    Ok(complaints)
}

/// The lints that keep a core without I/O are the same for all.
pub(crate) fn cores_carry_the_same_bans(checkout: &Checkout) -> Result<Vec<String>> {
    let Some(model) = checkout.file("crates/vocab/clippy.toml") else {
        return Ok(vec![
            "crates/vocab/clippy.toml: missing; it lists what no core may call".to_owned(),
        ]);
    };
    Ok(present_cores(checkout)
        .filter(|name| {
            let own = checkout.file(&format!("crates/{name}/clippy.toml"));
            own.is_none_or(|own| own.text != model.text)
        })
        .map(|name| {
            format!("crates/{name}/clippy.toml: differs from crates/vocab/clippy.toml; copy it")
        })
        .collect())
}

/// Cores forbid unsafe code, which no allowance further down can lift. The one exception lives under
/// the workspace's `deny` and allows it file by file.
pub(crate) fn cores_forbid_unsafe_code(checkout: &Checkout) -> Result<Vec<String>> {
    Ok(present_cores(checkout)
        .filter(|name| *name != WITH_INTRINSICS)
        .filter(|name| {
            let head = checkout.file(&format!("crates/{name}/src/lib.rs"));
            head.is_none_or(|head| !head.text.contains("#![forbid(unsafe_code)]"))
        })
        .map(|name| format!("crates/{name}/src/lib.rs: a core says #![forbid(unsafe_code)]"))
        .collect())
}

/// Cores give the same output for the same input: they never iterate in the order of a hash table.
pub(crate) fn cores_iterate_in_a_fixed_order(checkout: &Checkout) -> Result<Vec<String>> {
    Ok(present_cores(checkout)
        .filter(|name| *name != WITH_INTRINSICS)
        .filter(|name| {
            let head = checkout.file(&format!("crates/{name}/src/lib.rs"));
            head.is_none_or(|head| !head.text.contains("#![warn(clippy::iter_over_hash_type)]"))
        })
        .map(|name| {
            format!("crates/{name}/src/lib.rs: a core says #![warn(clippy::iter_over_hash_type)]")
        })
        .collect())
}

/// Lints, licence and edition are the workspace's, so that they change in one place.
pub(crate) fn manifests_share_lints_and_licence(checkout: &Checkout) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for name in checkout.crates() {
        let manifest = manifest(checkout, name)?;
        let from_workspace = |section: &str, key: &str| {
            manifest
                .get(section)
                .and_then(|section| section.get(key))
                .is_some_and(|value| match value.get("workspace") {
                    Some(flag) => flag.as_bool() == Some(true),
                    None => value.as_bool() == Some(true),
                })
        };
        for (section, key) in [
            ("lints", "workspace"),
            ("package", "license"),
            ("package", "edition"),
            ("package", "rust-version"),
        ] {
            if !from_workspace(section, key) {
                complaints.push(format!(
                    "crates/{name}/Cargo.toml: [{section}] {key} is taken from the workspace"
                ));
            }
        }
    }
    Ok(complaints)
}

/// Tests may lean on the test crates and, to script the other side, on what lies at or below the
/// crates that theirs may use; never on a shell from a core.
fn is_below_or_for_tests(user: &str, dependency: &str) -> bool {
    // A crate names itself to switch on a feature of its own for its tests.
    if FOR_TESTS.contains(&dependency) || user == dependency {
        return true;
    }
    !CORES.contains(&user) && CORES.contains(&dependency)
        || (matches!(user, "engine" | "tunnel" | "measure" | "tcp" | "profile")
            && dependency == "emulate")
        // A core's tests take a whole TCP, and the routes and keys of a simulated site.
        || matches!(
            (user, dependency),
            ("measure", "tcp") | ("engine", "simulation")
        )
}

fn present_cores(checkout: &Checkout) -> impl Iterator<Item = &'static str> {
    let crates = checkout.crates();
    CORES.into_iter().filter(move |core| crates.contains(core))
}

fn manifest(checkout: &Checkout, name: &str) -> Result<toml::Table> {
    let path = format!("crates/{name}/Cargo.toml");
    let file = checkout
        .file(&path)
        .with_context(|| format!("{path} is missing"))?;
    file.text
        .parse()
        .with_context(|| format!("{path} is not TOML"))
}

/// Every dependency of a crate with the section it stands in, those for single platforms included.
fn dependencies(checkout: &Checkout, name: &str) -> Result<Vec<(String, String)>> {
    const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let manifest = manifest(checkout, name)?;
    let mut tables: Vec<&toml::Table> = vec![&manifest];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().filter_map(toml::Value::as_table));
    }
    let mut found = Vec::new();
    for table in tables {
        for section in SECTIONS {
            let Some(listed) = table.get(section).and_then(toml::Value::as_table) else {
                continue;
            };
            found.extend(listed.keys().map(|key| (section.to_owned(), key.clone())));
        }
    }
    Ok(found)
}

/// True if a crate takes a dependency without any of its features: of tokio these are the traits of a socket, and no
/// socket.
fn has_no_features(checkout: &Checkout, name: &str, dependency: &str) -> Result<bool> {
    let manifest = manifest(checkout, name)?;
    let table = manifest
        .get("dependencies")
        .and_then(|table| table.get(dependency))
        .and_then(toml::Value::as_table);
    Ok(table.is_some_and(|table| {
        let is_bare = table.get("default-features") == Some(&toml::Value::Boolean(false));
        is_bare && !table.contains_key("features")
    }))
}

#[cfg(test)]
mod tests {
    use super::super::files::TextFile;
    use super::*;

    fn checkout(files: &[(&str, &str)]) -> Checkout {
        Checkout {
            root: ".".into(),
            files: files
                .iter()
                .map(|(path, text)| TextFile {
                    path: (*path).to_owned(),
                    text: (*text).to_owned(),
                })
                .collect(),
        }
    }

    #[test]
    fn a_core_that_uses_another_core_is_named() {
        let broken = checkout(&[
            (
                "crates/reduce/Cargo.toml",
                "[dependencies]\ntunnel.workspace = true\n",
            ),
            ("crates/tunnel/Cargo.toml", ""),
        ]);
        let complaints = crates_depend_one_way(&broken).expect("the text is TOML");
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("tunnel"), "{complaints:?}");
    }

    #[test]
    fn tests_of_a_core_may_use_the_test_crates() {
        let good = checkout(&[
            (
                "crates/tunnel/Cargo.toml",
                "[dev-dependencies]\ntestkit.workspace = true\n",
            ),
            ("crates/testkit/Cargo.toml", ""),
        ]);
        assert!(
            crates_depend_one_way(&good)
                .expect("the text is TOML")
                .is_empty()
        );
    }

    #[test]
    fn a_core_with_a_runtime_is_named() {
        let broken = checkout(&[(
            "crates/reduce/Cargo.toml",
            "[target.'cfg(unix)'.dependencies]\ntokio = \"1\"\n",
        )]);
        assert_eq!(
            cores_use_no_input_or_output(&broken)
                .expect("the text is TOML")
                .len(),
            1
        );
    }

    #[test]
    fn the_traits_of_a_socket_are_no_runtime() {
        let bare = "tokio = { version = \"1\", default-features = false }";
        let with_net =
            "tokio = { version = \"1\", default-features = false, features = [\"net\"] }";
        for (name, line, complaints) in [
            ("accelerate", bare, 0),
            ("accelerate", with_net, 1),
            ("accelerate", "tokio.workspace = true", 1),
            ("reduce", bare, 1),
        ] {
            let path = format!("crates/{name}/Cargo.toml");
            let text = format!("[dependencies]\n{line}\n");
            let checked = checkout(&[(&path, &text)]);
            let found = cores_use_no_input_or_output(&checked).expect("the text is TOML");
            assert_eq!(found.len(), complaints, "{name}: {line}");
        }
    }

    #[test]
    fn a_core_with_fewer_bans_is_named() {
        let broken = checkout(&[
            ("crates/vocab/Cargo.toml", ""),
            ("crates/vocab/clippy.toml", "all of them"),
            ("crates/engine/Cargo.toml", ""),
            ("crates/engine/clippy.toml", "some of them"),
        ]);
        assert_eq!(
            cores_carry_the_same_bans(&broken)
                .expect("nothing to parse")
                .len(),
            1
        );
    }
}
