//! Certificates of servers with TLS, made by the program openssl.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use host::command;

/// Makes an authority, and a certificate of `name` that it has signed: `leaf.pem` and `leaf.key` in `home`. Gives the
/// file of the authority's certificate.
///
/// # Errors
/// When openssl fails or a file cannot be written.
pub fn make(home: &Path, name: &str) -> Result<PathBuf> {
    let file = |name: &str| home.join(name).display().to_string();
    let (authority, authority_key) = (file("authority.pem"), file("authority.key"));
    let curve = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ];
    let new_key = |key: &str| -> Vec<String> {
        let words = ["req"].into_iter().chain(curve);
        let words = words.chain(["-keyout", key]);
        words.map(str::to_owned).collect()
    };
    let mut words = new_key(&authority_key);
    let subject = [
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=Origin authority",
        "-out",
        &authority,
    ];
    words.extend(subject.map(str::to_owned));
    command::run("openssl", words)?;
    let request = file("leaf.csr");
    let mut words = new_key(&file("leaf.key"));
    let subject = format!("/CN={name}");
    words.extend(["-subj", &subject, "-out", &request].map(str::to_owned));
    command::run("openssl", words)?;
    let names = home.join("names.txt");
    fs::write(&names, format!("subjectAltName=DNS:{name}\n"))?;
    let sign = [
        "x509",
        "-req",
        "-days",
        "2",
        "-CAcreateserial",
        "-in",
        &request,
        "-CA",
        &authority,
        "-CAkey",
        &authority_key,
        "-out",
        &file("leaf.pem"),
        "-extfile",
        &names.display().to_string(),
    ]
    .map(str::to_owned);
    command::run("openssl", sign)?;
    Ok(PathBuf::from(authority))
}
