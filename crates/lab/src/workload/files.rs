//! The file set of the 2009 WAAS report, with contents from a seed.
//!
//! The sizes are published (`report/published/waas_3g_files.csv`), the contents are not; only the
//! compression ratio of each kind is known. So the contents are made to compress alike: zstd -3
//! reaches about 4:1 in .doc and .xls, about 1.25:1 in .ppt, and nothing in .zip. No two files
//! share content: each file's text is written with a vocabulary of its own.
//!
//! ```text
//! .doc .xls   text of words from a private vocabulary, with runs of one byte between (as
//!             OLE files pad their sectors)
//! .ppt        pictures (random bytes) with such text between
//! .zip        random bytes
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use vocab::SeededRandom;

use crate::report::published;

/// Number of words in a file's vocabulary: few enough to be repeated within the smallest file.
const VOCABULARY: u64 = 600;
/// Padding bytes per 1000 bytes of text; set so that zstd -3 compresses 4:1.
const PADDING_PER_MILLE: u64 = 60;
/// Picture bytes per 1000 bytes of a presentation; set so that zstd -3 compresses 1.25:1.
const PICTURES_PER_MILLE: u64 = 735;
/// The unit in which kinds of content alternate, bytes.
const STRETCH: usize = 4096;

/// Interval of changed bytes in an edited file: one byte in this many, which is 1 %.
pub const EDITED_ONE_IN: usize = 100;
/// The shortest run of bytes that an edit overwrites.
const EDIT_SHORTEST: u64 = 64;
/// The longest run of bytes that an edit overwrites.
const EDIT_LONGEST: u64 = 512;

/// Files by name, as they should arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSet {
    files: BTreeMap<String, Bytes>,
}

impl FileSet {
    /// The named files of the published set (all when `names` is empty) with contents from
    /// `seed`; other seeds share nothing with them.
    ///
    /// # Errors
    /// When a name is not in the published set; the message lists those that are.
    pub fn generate(seed: u64, names: &[String]) -> Result<Self> {
        let known = published::files();
        for name in names {
            if !known.iter().any(|file| file.name == *name) {
                let list: Vec<&str> = known.iter().map(|file| file.name.as_str()).collect();
                bail!(
                    "`{name}` is not in the file set, which is {}",
                    list.join(", ")
                );
            }
        }
        let files = known
            .iter()
            .enumerate()
            .filter(|(_, file)| names.is_empty() || names.contains(&file.name))
            .map(|(index, file)| {
                let random = SeededRandom::for_stream(seed, index as u64);
                let bytes = content(&file.name, file.bytes, random);
                (file.name.clone(), bytes.into())
            })
            .collect();
        Ok(Self { files })
    }

    /// The named documents of the published open and save tests (all when `names` is empty), whose
    /// sizes differ from those of the file set, with contents from `seed`.
    #[must_use]
    pub fn documents(seed: u64, names: &[String]) -> Self {
        let files = published::documents()
            .iter()
            .enumerate()
            .filter(|(_, document)| names.is_empty() || names.contains(&document.file))
            .map(|(index, document)| {
                let random = SeededRandom::for_stream(seed, index as u64);
                let name = document.file.clone();
                let bytes = content(&name, document.bytes(), random);
                (name, bytes.into())
            })
            .collect();
        Self { files }
    }

    /// One file of random bytes, which nothing compresses and no other seed repeats.
    #[must_use]
    pub fn random(seed: u64, name: &str, bytes: u64) -> Self {
        let mut content = vec![0; usize::try_from(bytes).expect("documents fit into memory")];
        SeededRandom::from_seed(seed).fill(&mut content);
        Self {
            files: BTreeMap::from([(name.to_owned(), content.into())]),
        }
    }

    /// The same files with 1 % of their bytes overwritten, in runs of 64 to 512 bytes, at places
    /// and by bytes that `seed` draws.
    #[must_use]
    pub fn edited(&self, seed: u64) -> Self {
        let mut files = self.files.clone();
        for (index, content) in files.values_mut().enumerate() {
            let mut edited = content.to_vec();
            edit(
                &mut edited,
                &mut SeededRandom::for_stream(seed, index as u64),
            );
            *content = edited.into();
        }
        Self { files }
    }

    /// Names and contents, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files
            .iter()
            .map(|(name, content)| (name.as_str(), &content[..]))
    }

    /// Names and contents, by name, which share the memory of this set.
    pub fn shared(&self) -> impl Iterator<Item = (&str, Bytes)> {
        let files = self.files.iter();
        files.map(|(name, content)| (name.as_str(), content.clone()))
    }

    /// The file's content, if it is in the set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(|content| &content[..])
    }

    /// Number of files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Tells whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The bytes of all files.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.files
            .values()
            .map(|content| content.len() as u64)
            .sum()
    }

    /// Writes the files into a directory, replacing existing ones.
    ///
    /// # Errors
    /// Fails when a file cannot be written.
    pub fn write_to(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        for (name, content) in &self.files {
            let path = directory.join(name);
            std::fs::write(&path, content)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// The hash that files are compared by.
#[must_use]
pub fn hash(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

fn content(name: &str, bytes: u64, mut random: SeededRandom) -> Vec<u8> {
    let length = usize::try_from(bytes).expect("the published files are a few megabytes");
    let words = vocabulary(&mut random);
    let mut content = Vec::with_capacity(length + STRETCH);
    let pictures = match name.rsplit('.').next() {
        Some("zip") => 1000,
        Some("ppt") => PICTURES_PER_MILLE,
        _ => 0,
    };
    // Shares are kept exactly, stretch by stretch, so that small files compress as large ones do.
    let mut picture_debt = 0;
    while content.len() < length {
        picture_debt += pictures * STRETCH as u64;
        if picture_debt >= 1000 * STRETCH as u64 {
            picture_debt -= 1000 * STRETCH as u64;
            let start = content.len();
            content.resize(start + STRETCH, 0);
            random.fill(&mut content[start..]);
        } else {
            text(&mut content, &words, &mut random);
        }
    }
    content.truncate(length);
    content
}

/// Words of 4 to 12 letters that no other file has.
fn vocabulary(random: &mut SeededRandom) -> Vec<Vec<u8>> {
    (0..VOCABULARY)
        .map(|_| {
            let length = 4 + random.below(9);
            (0..length)
                .map(|_| b'a' + u8::try_from(random.below(26)).expect("below 26"))
                .chain([b' '])
                .collect()
        })
        .collect()
}

/// Appends one stretch of text: words, with the early ones of the vocabulary more often, then
/// padding.
fn text(content: &mut Vec<u8>, words: &[Vec<u8>], random: &mut SeededRandom) {
    let end = content.len() + STRETCH;
    let padding = STRETCH * usize::try_from(PADDING_PER_MILLE).expect("small") / 1000;
    while content.len() < end - padding {
        // The square of a uniform number leans towards the front of the list, as words do.
        let place = random.next_f64() * random.next_f64();
        let index = (place * words.len() as f64) as usize;
        content.extend_from_slice(&words[index.min(words.len() - 1)]);
    }
    content.resize(end, 0);
}

fn edit(content: &mut [u8], random: &mut SeededRandom) {
    let mut left = content.len() / EDITED_ONE_IN;
    while left > 0 {
        let run = EDIT_SHORTEST + random.below(EDIT_LONGEST - EDIT_SHORTEST + 1);
        let run = usize::try_from(run).expect("small").min(left);
        let places = (content.len() - run + 1) as u64;
        let start = usize::try_from(random.below(places)).expect("within the file");
        random.fill(&mut content[start..start + run]);
        left -= run;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(content: &[u8]) -> f64 {
        let mut compressed = vec![0; zstd_safe::compress_bound(content.len())];
        let length = zstd_safe::compress(&mut compressed[..], content, 3).unwrap();
        content.len() as f64 / length as f64
    }

    #[test]
    fn every_file_compresses_as_its_kind_should() {
        let set = FileSet::generate(1, &[]).unwrap();
        assert_eq!(set.len(), 19);
        for (name, content) in set.iter() {
            let ratio = ratio(content);
            let expected = match name.rsplit('.').next().unwrap() {
                "doc" | "xls" => 3.5..4.6,
                "ppt" => 1.2..1.3,
                _ => 0.99..1.001,
            };
            assert!(expected.contains(&ratio), "{name}: {ratio}");
        }
    }

    #[test]
    fn files_and_seeds_share_no_content() {
        let one = FileSet::generate(1, &[]).unwrap();
        let two = FileSet::generate(2, &[]).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for (name, content) in one.iter().chain(two.iter()) {
            // 64 bytes at every 64: padding apart, none may be met twice.
            let pieces: std::collections::BTreeSet<&[u8]> = content
                .chunks_exact(64)
                .filter(|piece| piece.iter().any(|byte| *byte != 0))
                .filter(|piece| !piece.ends_with(&[0]))
                .collect();
            for piece in pieces {
                assert!(seen.insert(piece), "{name} shares 64 bytes");
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_files() {
        let names = ["50K.doc".to_owned()];
        let one = FileSet::generate(9, &names).unwrap();
        assert_eq!(one, FileSet::generate(9, &names).unwrap());
        assert_eq!(one.get("50K.doc").unwrap().len(), 57_344);
        assert!(FileSet::generate(9, &["60K.doc".to_owned()]).is_err());
    }

    #[test]
    fn edit_changes_one_percent_and_keeps_the_length() {
        let set = FileSet::generate(3, &["1M.doc".to_owned(), "5M.zip".to_owned()]).unwrap();
        let edited = set.edited(4);
        for (name, before) in set.iter() {
            let after = edited.get(name).unwrap();
            assert_eq!(before.len(), after.len());
            let changed = before.iter().zip(after).filter(|(a, b)| a != b).count();
            let share = changed as f64 / before.len() as f64;
            assert!((0.008..=0.0101).contains(&share), "{name}: {share}");
        }
    }
}
