"""Says what to do about errors of object stores, Connect servers and Delta, which report little more than a status."""

from __future__ import annotations

import re

from dagster_kafka_flip.errors import error_text
from dagster_kafka_flip.runtime.remote import server_advice
from dagster_kafka_flip.runtime.spark_jars import jars_advice
from dagster_kafka_flip.table.spark_error import error_summary

# Names and texts of S3's, Hadoop's and Amazon's clients, each with what to do. HEAD requests are answered without a
# reason, so that only the status is known.
_ADVICE = {
    r"RequestTimeTooSkewed": "The clock of Spark's machine is wrong: set it, and run again",
    r"NoSuchBucket|UnknownStoreException": (
        "The bucket does not exist at this endpoint: create it (Spark doesn't), or correct the table's path"
    ),
    r"NoAuthWithAWSException|NoAwsCredentials|Unable to load (?:AWS )?credentials|Failed to load credentials": (
        "Spark found no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where it runs, or "
        "spark.hadoop.fs.s3a.access.key and spark.hadoop.fs.s3a.secret.key in Spark's config"
    ),
    r"ExpiredToken|TokenRefreshRequired|InvalidToken": (
        "The session token of these credentials has expired, or belongs to other credentials: give Spark new "
        "credentials, or leave the keys out where an instance role renews them, and run again"
    ),
    r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|Status Code: 40[13]\b": (
        "The store refuses these credentials, or they lack a right: check the access key and its secret, the rights "
        "to list, read, write and delete under the table's path, and the clock of Spark's machine"
    ),
    r"AuthorizationHeaderMalformed|AWSRedirectException|PermanentRedirect|Status Code: (?:301|400)\b": (
        "The region or the endpoint is probably not the bucket's: set spark.hadoop.fs.s3a.endpoint.region, and "
        "spark.hadoop.fs.s3a.endpoint for a store that isn't Amazon's. A session token that has expired can look like "
        "this, too"
    ),
    r"UnknownHostException": (
        "The host does not exist: check spark.hadoop.fs.s3a.endpoint, and whether the store needs "
        "spark.hadoop.fs.s3a.path.style.access=true"
    ),
    r"ApiCallTimeoutException|ApiCallAttemptTimeoutException|SocketTimeoutException|Read timed out": (
        "The store did not answer in time: check whether it runs, spark.hadoop.fs.s3a.endpoint, and the network "
        "between Spark and store, then run again"
    ),
    r"SlowDown|ServiceUnavailable|Service Unavailable|ThrottledException|Status Code: 503\b": (
        "The store had too much to do, or is down: see what else asks it, then run again"
    ),
    r"Unable to execute HTTP request": (
        "Nothing answers at this endpoint: check spark.hadoop.fs.s3a.endpoint and the network between Spark and store"
    ),
    r"NoClassDefFoundError: com/amazonaws|ClassNotFoundException: com\.amazonaws": (
        "The table has a commit coordinator in DynamoDB, and Spark lacks its client: add "
        "com.amazonaws:aws-java-sdk-dynamodb:1.12.262 to Spark's packages"
    ),
}
CHECK_ACCESS = "Check the table's name and this machine's access to its store and catalog, then run again"
"""What to do if a table can't be reached, and nothing else is known."""

_LOG_IS_INCOMPLETE = re.compile(
    r"DELTA_VERSIONS_NOT_CONTIGUOUS|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_LOG_FILE_NOT_FOUND|DELTA_MISSING_PART_FILES"
    r"|Could not find any delta files|Checkpoint file to load version: \d+ is missing"
)
_NO_DELTA = re.compile(
    r"ClassNotFoundException: (?:io\.delta|org\.apache\.spark\.sql\.delta)\b|plugin class for catalog .*DeltaCatalog"
)
_FROM_A_STORE = re.compile(r"awssdk|com[./]amazonaws|s3a|S3A|\bS3\b")


def with_advice(error: BaseException, otherwise: str = "") -> str:
    """The line that explains the error, and what to do.

    Args:
        error: Spark's error.
        otherwise: What to do if it is not a known error of an object store, a Connect server or an incomplete log.
    """
    return ". ".join(filter(None, (error_summary(error).rstrip("."), _advice(error) or otherwise)))


def _advice(error: BaseException) -> str | None:
    """What to do about an error of an object store, a Connect server or an incomplete log; None if it is another."""
    if (advice := server_advice(error)) is not None:
        return advice
    text = error_text(error)
    if _LOG_IS_INCOMPLETE.search(text):
        return "Files of its _delta_log are gone: put them back from a backup, or use another table"
    if _NO_DELTA.search(text):
        return f"Spark lacks Delta's jars. {jars_advice()}"
    if not _FROM_A_STORE.search(text):
        return None
    return next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, text)), None)
