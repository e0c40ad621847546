//! `trunkline http`: makes the authority that interception of HTTPS needs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use node::http_authority::{AUTHORITY_LIFE_MAX, NewAuthority};

/// Makes what interception of HTTPS needs.
#[derive(Debug, Args)]
pub(crate) struct HttpArguments {
    #[command(subcommand)]
    command: HttpCommand,
}

#[derive(Debug, Subcommand)]
enum HttpCommand {
    /// Creates the certificate and the key of a certificate authority that may sign only for the
    /// given domains.
    Ca(AuthorityArguments),
}

#[derive(Debug, Args)]
struct AuthorityArguments {
    /// Sets the name of the certificate authority, which clients show.
    #[arg(long)]
    name: String,
    /// Permits the certificate authority to sign for this domain and for all names below it. Repeat
    /// the option for each domain.
    #[arg(long = "permit", value_name = "DOMAIN", required = true)]
    permitted: Vec<String>,
    /// Writes ca.pem and ca.key into this directory. Install ca.pem at the clients, and keep ca.key
    /// on the near node.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Sets the number of days for which the certificate authority is valid.
    #[arg(long, default_value_t = 1_825, value_parser = clap::value_parser!(u64).range(1..=3_650))]
    days: u64,
}

impl HttpArguments {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            HttpCommand::Ca(command) => command.run(),
        }
    }
}

impl AuthorityArguments {
    fn run(self) -> anyhow::Result<()> {
        ensure!(
            !self.name.is_empty(),
            "--name is empty; write the name that people see in their browser"
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.context("the system clock shows a time before 1970; set the clock")?;
        let life = Duration::from_secs(self.days * 86_400).min(AUTHORITY_LIFE_MAX);
        let new = NewAuthority {
            name: self.name,
            permitted: self.permitted,
            now: now.as_secs().cast_signed(),
            life,
        };
        let (certificate, key) = new.make()?;
        fs::create_dir_all(&self.out)
            .with_context(|| format!("cannot make {}", self.out.display()))?;
        let (certificate_path, key_path) = (self.out.join("ca.pem"), self.out.join("ca.key"));
        // The key first: a certificate without a key is of no use, and an old key is not overwritten.
        write_new(&key_path, 0o600, key.as_bytes())?;
        write_new(&certificate_path, 0o644, certificate.as_bytes())?;
        say!(
            "{}: install this certificate as a trusted authority at the clients",
            certificate_path.display()
        );
        say!(
            "{}: keep this key on the near node only",
            key_path.display()
        );
        say!(
            "[http.tls]\nintercept = [{}]\nca_certificate = {:?}\nca_key = {:?}",
            patterns(&new.permitted),
            certificate_path,
            key_path
        );
        Ok(())
    }
}

fn patterns(domains: &[String]) -> String {
    let patterns = domains.iter().map(|domain| {
        let domain = domain.strip_prefix("*.").unwrap_or(domain);
        format!("\"*.{domain}\"")
    });
    patterns.collect::<Vec<_>>().join(", ")
}

fn write_new(path: &Path, mode: u32, content: &[u8]) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let written = options.open(path).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.with_context(|| {
        format!(
            "cannot write {}; the file must not exist yet",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn command(out: &Path, permitted: &str) -> AuthorityArguments {
        AuthorityArguments {
            name: "Corp".to_owned(),
            permitted: vec![permitted.to_owned()],
            out: out.to_owned(),
            days: 30,
        }
    }

    #[test]
    fn the_key_is_its_owners_alone_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("ca");
        command(&out, "corp.example").run().unwrap();
        let key = out.join("ca.key");
        let mode = fs::metadata(&key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let before = fs::read(&key).unwrap();
        let error = command(&out, "corp.example").run().unwrap_err();
        assert!(format!("{error:#}").contains("must not exist"), "{error:#}");
        assert_eq!(fs::read(&key).unwrap(), before);
    }

    #[test]
    fn permitted_patterns_are_printed_with_one_asterisk() {
        let domains = ["*.corp.example".to_owned(), "other.example".to_owned()];
        assert_eq!(
            patterns(&domains),
            "\"*.corp.example\", \"*.other.example\""
        );
    }

    #[test]
    fn a_permitted_name_that_is_none_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = command(directory.path(), "10.0.0.1").run().unwrap_err();
        assert!(error.to_string().contains("not a domain name"), "{error:#}");
        assert!(!directory.path().join("ca.key").exists());
    }
}
